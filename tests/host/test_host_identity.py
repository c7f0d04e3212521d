"""An identity dependency may read the request, change the response, and be wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request, Response
from pydantic import BaseModel
from rest import UNKNOWN_ID, V1, expect_problem, register, run_task, submit
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from host.conftest import Start
from zndraw_joblib import Identity, JobLib, JobLibSettings, verify_readable_room

BOUND = 30
ROOT = Identity("root", is_superuser=True)


def mounted(sessions: Any, identity: Callable[..., Any], **options: Any) -> FastAPI:
    """Return a host with only the queue."""
    app = FastAPI()
    JobLib(session_maker=sessions, identity=identity, **options).mount(app)
    return app


async def by_body(request: Request) -> Identity:
    """Read the whole body, as a signature check does."""
    await request.body()
    return ROOT


async def by_stream(request: Request) -> Identity:
    """Read the first part of the body only."""
    async for _ in request.stream():
        break
    return ROOT


async def signed_room(room_id: str, request: Request, _: Annotated[Identity, Depends(by_body)]) -> str:
    """Read the body once more in a guard."""
    await request.body()
    return room_id


@pytest.mark.parametrize("identity", [by_body, by_stream])
async def test_an_identity_may_read_the_body(
    sessions: Any, start: Start, identity: Callable[..., Any]
) -> None:
    """Writes, waiting claims, reads and uploads all get their whole body."""
    app = mounted(sessions, identity, readable_room=signed_room)
    client = await start(app)
    async with asyncio.timeout(BOUND):
        task = await run_task(client)
        assert task["payload"]
        job = await register(client, "Other")
        body = {"worker_id": job["worker_id"]}
        response = await client.post(f"{V1}/tasks/claim", json=body, headers={"Prefer": "wait=1"})
        assert response.json()["task"] is None
        task = await submit(client, job, room="lab", text="x" * 500_000)
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["payload"] == {"text": "x" * 500_000}


async def test_an_upload_keeps_its_body(sessions: Any, start: Start) -> None:
    """The bytes of a provider result arrive after the identity has read them; its limit still holds."""
    settings = JobLibSettings(max_result_bytes=10_000_000)
    client = await start(mounted(sessions, by_body, settings=settings))
    async with asyncio.timeout(BOUND):
        put = await client.put(f"{V1}/rooms/@global/providers", json={"category": "files", "name": "home"})
        provider = put.json()
        url = f"{V1}/rooms/lab/providers/{provider['full_name']}"
        reading = asyncio.ensure_future(client.get(url, headers={"Prefer": f"wait={BOUND}"}))
        claimed = await client.post(
            f"{V1}/providers/requests/claim",
            json={"worker_id": provider["worker_id"]},
            headers={"Prefer": "wait=10"},
        )
        headers = {"X-Request-Hash": claimed.json()["request"]["request_id"]}
        upload = f"{V1}/providers/{provider['id']}/results"
        too_large = await client.post(upload, content=b"x" * 11_000_000, headers=headers)
        expect_problem(too_large, 413, "content-too-large")
        assert (await client.post(upload, content=b"x" * 9_000_000, headers=headers)).status_code == 204
        assert (await reading).content == b"x" * 9_000_000


async def test_what_an_identity_reads_is_bounded(sessions: Any, start: Start) -> None:
    """A body above the limit is a 413 before all of it was read, also without an identity."""
    sent = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b" " * 1_000_000

    client = await start(mounted(sessions, by_body, settings=JobLibSettings(max_result_bytes=1)))
    async with asyncio.timeout(BOUND):
        response = await client.post(f"{V1}/tasks/claim", content=stream())
    expect_problem(response, 413, "content-too-large")
    assert sent < 10


async def test_an_identity_may_change_the_response(sessions: Any, start: Start) -> None:
    """Its cookies, headers and background tasks are kept, also when the endpoint fails."""
    done: list[str] = []

    async def renew(request: Request, response: Response, background: BackgroundTasks) -> Identity:
        response.set_cookie("session", "new")
        response.set_cookie("theme", "dark")
        response.headers["X-Seen"] = "yes"
        response.headers["Content-Type"] = "text/html"
        request.state.user = "root"
        background.add_task(done.append, request.url.path)
        return ROOT

    app = mounted(sessions, renew)
    states: list[str] = []

    @app.middleware("http")
    async def look(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        states.append(request.state.user)
        return response

    client = await start(app)
    for url, status in ((f"{V1}/workers", 200), (f"{V1}/rooms/a:b/tasks", 400)):
        response = await client.get(url)
        assert response.status_code == status
        assert response.headers.get_list("set-cookie") == [
            "session=new; Path=/; SameSite=lax",
            "theme=dark; Path=/; SameSite=lax",
        ]
        assert response.headers["x-seen"] == "yes"
        assert "json" in response.headers["content-type"]
        assert response.headers.get_list("content-type") == [response.headers["content-type"]]
    assert done == [f"{V1}/workers", f"{V1}/rooms/a:b/tasks"]
    assert states == ["root", "root"]


async def test_a_guard_may_change_the_response(sessions: Any, start: Start) -> None:
    """A dependency that identity and guard share runs for each; its cookie is sent once."""

    async def renew(response: Response) -> Identity:
        response.set_cookie("session", "new")
        return ROOT

    async def guard(room_id: str, response: Response, _: Annotated[Identity, Depends(renew)]) -> str:
        response.headers["X-Room"] = room_id
        return room_id

    client = await start(mounted(sessions, renew, readable_room=guard))
    response = await client.get(f"{V1}/rooms/lab/jobs")
    assert response.headers.get_list("set-cookie") == ["session=new; Path=/; SameSite=lax"]
    assert response.headers["x-room"] == "lab"


class Base(DeclarativeBase):
    """A host's own tables."""


class Row(Base):
    """A user in a table, without a flag."""

    __tablename__ = "person"
    id: Mapped[int] = mapped_column(primary_key=True)


class Model(BaseModel):
    """A user as a pydantic model, without a flag."""

    id: int


@dataclass
class Record:
    """A user as a dataclass, without a flag."""

    id: int


class Named(NamedTuple):
    """A user as a named tuple, without a flag."""

    id: int


async def row() -> Row | None:
    """Return a row."""
    return Row(id=1)


async def model() -> Annotated[Model, "a user"]:
    """Return a model."""
    return Model(id=1)


async def record() -> AsyncIterator[Record]:
    """Yield a record."""
    yield Record(1)


def named() -> Named:
    """Return a named tuple."""
    return Named(1)


async def mapping() -> dict[str, Any]:
    """Return a dictionary."""
    return {"id": 1, "is_superuser": True}


class ByInstance:
    """An identity that is an object with `__call__`."""

    async def __call__(self) -> Record:
        """Return a record."""
        return Record(1)


async def test_a_declared_type_without_the_flag_is_an_error_at_mount(
    sessions: Any, subtests: pytest.Subtests
) -> None:
    """The error names the attribute and what to do."""
    for identity in (row, model, record, named, mapping, ByInstance()):
        with (
            subtests.test(identity=identity),
            pytest.raises(TypeError, match=r"has no attribute '(id|is_superuser)'.*zndraw_joblib\.Identity"),
        ):
            mounted(sessions, identity)


class Late:
    """A user whose attributes are known at run time only."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Loose(BaseModel, extra="allow"):
    """A model that takes any field."""


async def late() -> Late:
    """Return a user without a flag."""
    return Late(id=1)


async def loose() -> Loose:
    """Return a user with everything."""
    return Loose.model_validate({"id": "root", "is_superuser": True})


async def undeclared():  # type: ignore[no-untyped-def]
    """Return a user without a flag."""
    return Late(id=1)


async def unsaved() -> Late:
    """Return a user that has no id yet."""
    return Late(id=None, is_superuser=True)


@pytest.mark.parametrize(("identity", "missing"), [(late, "is_superuser"), (undeclared, "is_superuser")])
async def test_a_missing_attribute_is_named_in_the_response(
    sessions: Any, start: Start, identity: Any, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the type does not show it, the problem and the log name the attribute."""
    client = await start(mounted(sessions, identity))
    response = await client.get(f"{V1}/workers")
    body = expect_problem(response, 500, "internal-server-error")
    assert f"Late has no attribute '{missing}'" in body["detail"]
    assert "Identity" in body["detail"]
    assert f"Late has no attribute '{missing}'" in caplog.text


async def test_a_user_without_an_id_is_an_error(sessions: Any, start: Start) -> None:
    """All users that are not saved yet would be the same caller."""
    client = await start(mounted(sessions, unsaved))
    body = expect_problem(await client.get(f"{V1}/workers"), 500, "internal-server-error")
    assert "id is None" in body["detail"]


async def test_any_type_with_both_attributes_is_accepted(sessions: Any, start: Start) -> None:
    """Fields that a model takes at run time count."""
    client: httpx.AsyncClient = await start(mounted(sessions, loose))
    assert (await client.get(f"{V1}/workers")).status_code == 200


class Method:
    """A user whose flag is a method, as in some frameworks."""

    id = "ada"

    def is_superuser(self) -> bool:
        """Return false, but the method itself is true."""
        return False


async def by_method() -> Method:
    """Return a user."""
    return Method()


async def test_a_flag_that_is_a_method_is_an_error_at_mount(sessions: Any) -> None:
    """It would make each user a superuser."""
    with pytest.raises(TypeError, match=r"Method, whose is_superuser is a method.*property"):
        mounted(sessions, by_method)


@pytest.mark.parametrize(
    "flag", [Method().is_superuser, "no", 1, object()], ids=["method", "text", "number", "object"]
)
async def test_a_flag_that_is_no_boolean_is_an_error(
    sessions: Any, start: Start, flag: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In a request and in a host's call: the error names the attribute and its value."""

    async def identity() -> Late:
        return Late(id="ada", is_superuser=flag)

    app = mounted(sessions, identity)
    client = await start(app)
    body = expect_problem(await client.get(f"{V1}/workers"), 500, "internal-server-error")
    assert "is_superuser of Late is" in body["detail"]
    assert "neither True nor False" in caplog.text
    with pytest.raises(TypeError, match="is_superuser of Late is"):
        await app.state.joblib.cancel(UNKNOWN_ID, identity=Late(id="ada", is_superuser=flag))


@pytest.mark.parametrize(("flag", "expected"), [(True, True), (False, False), (None, False)])
async def test_only_true_makes_a_superuser(sessions: Any, start: Start, flag: Any, expected: bool) -> None:
    """A nullable column counts as false."""

    async def identity() -> Late:
        return Late(id="ada", is_superuser=flag)

    client = await start(mounted(sessions, identity))
    assert (await client.get(f"{V1}/me")).json()["is_superuser"] is expected


async def test_what_a_hosts_dependencies_read_from_the_query_is_allowed(sessions: Any, start: Start) -> None:
    """A token for the identity, and a parameter of a guard. One that takes the request may read any."""

    async def user(token: str = "") -> Identity:
        return Identity(token, True)

    async def room(room_id: str, project: str = "") -> str:
        return room_id

    async def whole(room_id: str, request: Request) -> str:
        return room_id

    app = FastAPI()
    JobLib(session_maker=sessions, identity=user, readable_room=room).mount(app)
    client = await start(app)
    url = f"{V1}/rooms/lab/jobs"
    params: dict[str, Any] = {"token": "ada", "project": "x", "limit": 1}
    assert (await client.get(url, params=params)).json()["items"] == []
    assert (await client.get(f"{V1}/me", params={"token": "a b"})).json()["id"] == "a b"
    problem = expect_problem(await client.get(url, params={**params, "limt": 1}), 422, "invalid-request")
    assert "query.limt" in problem["detail"]
    app.dependency_overrides[verify_readable_room] = whole
    assert (await client.get(url, params={**params, "limt": 1})).status_code == 200
