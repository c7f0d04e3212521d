"""The queue's routes are called in front of a host's router; the host cannot see a difference."""

import re
from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from opentelemetry.trace import NoOpTracer, Tracer, TracerProvider
from rest import ROTATE, UNKNOWN_ID, V1, register, run_task, submit
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from host.conftest import Start
from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.http import middleware
from zndraw_joblib.server.http.middleware import may_have_telemetry

TASK = f"{V1}/tasks/{UNKNOWN_ID}"
_HANDLERS = "starlette.exception_handlers"
# In a recorded scope: whether the queue answered before the app's exception handlers and router.
CAME_FIRST = "came_first"
ANY_NAME = f"{V1}/rooms/{{room}}/tasks/{{name:path}}"


async def current_user(x_id: Annotated[str, Header()]) -> Identity:
    """Return the user named in the header."""
    return Identity(x_id, is_superuser=x_id == "root")


class Recorder:
    """A middleware that records the scope of each request after the request."""

    def __init__(self, app: ASGIApp, seen: list[Scope]) -> None:
        self.app = app
        self.seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        outer = scope.get(_HANDLERS)
        await self.app(scope, receive, send)
        # The app's own layers, which follow all middleware, set the key.
        self.seen.append({**scope, CAME_FIRST: scope.get(_HANDLERS) is outer})


@pytest.fixture
async def sessions(sqlite_url: str) -> Any:
    """Return the session maker of the host."""
    engine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    yield async_sessionmaker(engine)
    await engine.dispose()


@pytest.fixture
def mount(sessions: Any) -> Callable[..., FastAPI]:
    """Return a function that mounts the queue into an app."""

    def into(app: FastAPI, **options: Any) -> FastAPI:
        JobLib(session_maker=sessions, identity=current_user, **options).mount(app)
        return app

    return into


async def test_middleware_sees_the_requests_of_the_queue(mount: Any, start: Start) -> None:
    """Middleware of any kind is outside, added before or after the mount; the scope has the route."""
    seen: list[Scope] = []
    app = FastAPI(middleware=[Middleware(Recorder, seen=seen)])

    async def stamp(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["X-Stamp"] = "1"
        return response

    app.add_middleware(BaseHTTPMiddleware, dispatch=stamp)
    mount(app)
    app.add_middleware(Recorder, seen=seen)
    client = await start(app, **{"X-Id": "root"})
    task = await run_task(client)
    seen.clear()
    response = await client.get(f"{V1}/tasks/{task['id']}")
    assert response.headers["X-Stamp"] == "1"
    assert len(seen) == 2
    assert seen[0]["route"].path == f"{V1}/tasks/{{task_id}}"
    assert seen[0]["endpoint"] is seen[0]["route"].endpoint
    assert seen[0]["path_params"] == {"task_id": task["id"]}
    assert seen[0]["router"] is app.router
    assert seen[0][CAME_FIRST]


async def test_a_middleware_may_answer_or_change_a_request(mount: Any, start: Start) -> None:
    """What it refuses does not reach the queue; a path that it rewrites does."""

    class Rewrite:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == "/refused":
                await JSONResponse({}, 418)(scope, receive, send)
            else:
                path = scope["path"].replace("/old/", "/joblib/")
                await self.app({**scope, "path": path}, receive, send)

    client = await start(mount(FastAPI(middleware=[Middleware(Rewrite)])), **{"X-Id": "root"})
    assert (await client.get("/refused")).status_code == 418
    assert (await client.get("/v1/old/workers")).json()["total"] == 0


async def test_overrides_that_are_set_later_apply(mount: Any, start: Start) -> None:
    """An override of the identity holds from the next request on."""
    app = mount(FastAPI())
    client = await start(app, **{"X-Id": "ada"})
    job = await register(client, room="lab")
    assert (await submit(client, job))["created_by"] == "ada"
    app.dependency_overrides[current_user] = lambda: Identity("bob", is_superuser=False)
    assert (await submit(client, job))["created_by"] == "bob"
    app.dependency_overrides = {}
    assert (await submit(client, job))["created_by"] == "ada"


def add_route(app: FastAPI) -> None:
    """Add a route of the host for all names of tasks."""
    app.add_api_route(ANY_NAME, own, methods=["POST"])


def add_included(app: FastAPI) -> None:
    """Include a router with this route."""
    pages = APIRouter(prefix=V1)
    pages.add_api_route(ANY_NAME.removeprefix(V1), own, methods=["POST"])
    app.include_router(pages)


def add_mount(app: FastAPI) -> None:
    """Mount an app for all paths below /v1."""
    app.mount("/v1", JSONResponse({"own": True}))


def add_unknown(app: FastAPI) -> None:
    """Add a route of a class of the host, which takes requests by a header."""

    class ByHeader(BaseRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            return (Match.FULL if (b"x-own", b"1") in scope.get("headers", ()) else Match.NONE), {}

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            await JSONResponse({"own": True})(scope, receive, send)

    app.router.routes.append(ByHeader())


async def own() -> dict[str, bool]:
    """Answer as the host."""
    return {"own": True}


@pytest.fixture(params=["known", "unknown"])
def included(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the names that FastAPI has for included routers, and as if it had others."""
    if request.param == "unknown":
        # Another FastAPI cannot be installed for one test.
        monkeypatch.setattr(middleware, "_included", lambda _: None)


@pytest.mark.usefixtures("included")
@pytest.mark.parametrize("add", [add_route, add_included, add_mount, add_unknown])
async def test_the_first_registered_route_answers(mount: Any, start: Start, add: Any) -> None:
    """A host's route for the same path answers if it is registered before the queue, and not after."""
    before, after = FastAPI(), FastAPI()
    add(before)
    mount(before)
    mount(after)
    add(after)
    for app, is_own in ((before, True), (after, False)):
        client = await start(app, **{"X-Id": "root", "X-Own": "1"})
        response = await client.post(f"{V1}/rooms/lab/tasks/lab:modifiers:None", json={})
        assert ("own" in response.json()) is is_own


@pytest.mark.usefixtures("included")
async def test_a_route_is_found_that_is_added_later(mount: Any, start: Start) -> None:
    """A router that is included before the queue may get routes while the app runs; so may the app."""
    app, pages, seen = FastAPI(), APIRouter(), []
    app.include_router(pages)
    mount(app)
    app.add_middleware(Recorder, seen=seen)
    client = await start(app, **{"X-Id": "root"})
    assert (await client.get(f"{V1}/workers")).json()["total"] == 0
    assert seen[-1][CAME_FIRST]
    for path in (f"{V1}/workers", "/own"):
        pages.add_api_route(path, own)
    # Older versions of FastAPI copy the routes of a router when it is included.
    is_followed = (await client.get("/own")).status_code == 200
    assert ((await client.get(f"{V1}/workers")).json() == {"own": True}) is is_followed
    app.router.routes.insert(0, Mount(f"{V1}/tasks", JSONResponse({"own": True})))
    assert (await client.get(TASK)).json() == {"own": True}
    del app.router.routes[0]
    assert (await client.get(TASK)).status_code == 404


async def test_the_host_handles_its_own_errors(mount: Any, start: Start) -> None:
    """Its handlers of classes answer, its handler of all errors does not, and an error stays an error."""

    class Closed(Exception):
        pass

    class ClosedForever(Closed):
        pass

    async def guard(room_id: str) -> None:
        raise {"closed": ClosedForever, "broken": KeyError}[room_id](room_id)

    app, seen = mount(FastAPI(), writable_room=guard), []
    app.add_middleware(Recorder, seen=seen)

    @app.exception_handler(Closed)
    def answer(request: Request, error: Closed) -> Response:
        return JSONResponse({"closed": str(error), "path": request.url.path}, 423)

    @app.exception_handler(Exception)
    async def answer_all(request: Request, error: Exception) -> Response:
        return JSONResponse({}, 418)

    client = await start(app, **{"X-Id": "root"})
    response = await client.put(f"{V1}/rooms/closed/jobs", json=ROTATE)
    assert (response.status_code, response.json()) == (
        423,
        {"closed": "closed", "path": f"{V1}/rooms/closed/jobs"},
    )
    response = await client.put(f"{V1}/rooms/broken/jobs", json=ROTATE)
    assert (response.status_code, response.json()["type"]) == (500, "/v1/problems/internal-server-error")


PATHS = [
    *("/tasks", "/tasks/", "/tasks/claim", "/tasks/claim/", f"/tasks/{UNKNOWN_ID}", f"/tasks/{UNKNOWN_ID}/"),
    *("/tasks/claim%0A", f"/tasks/{UNKNOWN_ID}%2Fhistory", f"//tasks/{UNKNOWN_ID}", "/", "", "x/tasks/claim"),
    *("/workers", "/workers/", "/WORKERS", f"/workers/{UNKNOWN_ID}", "/workers/a%2Fb", "/workers/%00"),
    *("/rooms/lab/tasks", "/rooms/lab/tasks/", "/rooms//tasks/x", "/rooms/a%2Fb/tasks/lab:modifiers:X"),
    *("/rooms/lab/tasks/lab:modifiers:X/", "/rooms/lab/tasks/lab%3Amodifiers%3AX", "/rooms/lab/tasks/a/b/c"),
    *("/rooms/l%0Ab/tasks/lab:modifiers:X", "/rooms/lab/tasks/lab:modifiers:X%0A", "/rooms/%25/tasks/%2541"),
    *("/rooms/%C3%A9/tasks/a%20b", "/rooms/lab/tasks/%F0%9F%A7%AA:a:b"),
    *("/rooms/lab/jobs/lab:modifiers:X/tasks", "/rooms/lab/jobs/a/tasks/b/tasks", "/rooms/lab/jobs"),
]
METHODS = ["GET", "POST", "PATCH", "HEAD", "OPTIONS", "TRACE", "PUT", "get"]


def masked(content: bytes) -> bytes:
    """Return a body without the ids and times that the server makes."""
    return re.sub(rb"[0-9a-f-]{36}|[0-9T:.-]{26}Z", b"", content)


@pytest.mark.parametrize("root_path", ["", "/api"])
async def test_a_request_gets_the_response_of_the_router(mount: Any, start: Start, root_path: str) -> None:
    """With any method, path and encoding, the status, headers and body are the same."""
    quick, plain = mount(FastAPI()), mount(FastAPI())
    plain.user_middleware.clear()
    seen: list[Scope] = []
    quick.add_middleware(Recorder, seen=seen)
    clients = []
    for app in (quick, plain):
        await start(app)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path=root_path)
        clients.append(httpx.AsyncClient(transport=transport, headers={"X-Id": "root"}))
    for prefix in {root_path, ""}:
        for path in PATHS:
            for method in METHODS:
                url = httpx.URL(f"http://host{prefix}{V1}{path}")
                quickly, plainly = [await client.request(method, url, json={}) for client in clients]
                assert quickly.status_code == plainly.status_code, (method, url)
                assert dict(quickly.headers) == dict(plainly.headers), (method, url)
                assert masked(quickly.content) == masked(plainly.content), (method, url)
    assert sum(scope[CAME_FIRST] for scope in seen) > 20


async def test_a_request_is_answered_first_in_a_mounted_app(mount: Any, start: Start) -> None:
    """The path under which the app is mounted is not part of the route's path."""
    seen: list[Scope] = []
    inner, outer = mount(FastAPI()), FastAPI()
    inner.add_middleware(Recorder, seen=seen)
    outer.mount("/tenants/{tenant}", inner)
    await start(inner)
    client = await start(outer, **{"X-Id": "root"})
    client.base_url = "http://host/tenants/one"
    await run_task(client)
    assert all(scope[CAME_FIRST] for scope in seen)
    assert seen[-1]["path_params"].keys() == {"tenant", "task_id"}


async def test_with_telemetry_the_router_gets_all_requests(mount: Any, start: Start) -> None:
    """The router gives FastAPI's telemetry the path of the route."""

    class Tracers(TracerProvider):
        def get_tracer(self, *_: Any, **__: Any) -> Tracer:
            return NoOpTracer()

    seen: list[Scope] = []
    app = mount(FastAPI(telemetry={"tracer_provider": Tracers()}))
    app.add_middleware(Recorder, seen=seen)
    client = await start(app, **{"X-Id": "root"})
    assert (await client.get(f"{V1}/workers")).status_code == 200
    # Older versions of FastAPI have no telemetry.
    has_telemetry = "telemetry" in signature(FastAPI).parameters
    assert seen[-1][CAME_FIRST] is not has_telemetry
    assert may_have_telemetry(app) is has_telemetry
    assert (middleware.tracer_provider(app) is not None) is has_telemetry
    assert not may_have_telemetry(FastAPI())


async def test_a_dependency_finds_the_urls_of_routes(mount: Any, start: Start, sessions: Any) -> None:
    """`request.url_for` works in a host's dependency."""
    urls = []

    async def user(request: Request, _: Annotated[Any, Depends(current_user)]) -> Identity:
        urls.append(str(request.url_for("get_task", task_id="1")))
        return Identity("root", is_superuser=True)

    app = FastAPI()
    JobLib(session_maker=sessions, identity=user).mount(app)
    client = await start(app, **{"X-Id": "root"})
    assert (await client.get(f"{V1}/workers")).status_code == 200
    assert urls == [f"http://host{V1}/tasks/1"]
