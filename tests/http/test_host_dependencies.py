"""A host's dependencies are solved by FastAPI at any point of a request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError

from zndraw_joblib.server.http.requests import solve, takes_parameter


async def test_solve_resolves_closes_and_overrides_a_dependency() -> None:
    """It returns the value, closes the dependency first, and respects path parameters and overrides."""
    app, calls = FastAPI(), []

    async def session() -> AsyncIterator[str]:
        calls.append("open")
        yield "session"
        calls.append("closed")

    async def room(
        room_id: Annotated[int, Path()], session: Annotated[str, Depends(session)], request: Request
    ) -> str:
        return f"{session} {room_id} {request.method}"

    @app.get("/rooms/{room_id}")
    async def read(request: Request) -> dict[str, str]:
        own = await solve(request, room)
        calls.append("solved")
        return {"own": own, "other": await solve(request, room, room_id="2")}

    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/rooms/1")).json() == {"own": "session 1 GET", "other": "session 2 GET"}
        assert calls == ["open", "closed", "solved", "open", "closed"]
        app.dependency_overrides[session] = lambda: "override"
        assert (await client.get("/rooms/1")).json()["own"] == "override 1 GET"


async def test_solve_raises_the_validation_error_of_a_parameter() -> None:
    """A parameter that does not fit is FastAPI's own error."""
    app, errors = FastAPI(), []

    async def room(room_id: Annotated[int, Path()]) -> int:
        return room_id

    @app.get("/rooms/{room_id}")
    async def read(request: Request) -> None:
        try:
            await solve(request, room)
        except RequestValidationError as error:
            errors.append(error.errors()[0]["loc"])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        await client.get("/rooms/x")
    assert errors == [("path", "room_id")]


async def test_an_error_of_a_dependency_reaches_the_caller() -> None:
    """No handler of the app answers it; an error after `yield`, too, is the dependency's own."""
    app, errors = FastAPI(), []

    @app.exception_handler(HTTPException)
    async def answer(*_: object) -> None:
        raise AssertionError("the app handled the error of a dependency")

    def before() -> None:
        raise HTTPException(403, "before")

    async def after() -> AsyncIterator[str]:
        yield "value"
        raise HTTPException(409, "after")

    async def broken() -> AsyncIterator[str]:
        yield "value"
        raise KeyError("broken")

    @app.get("/")
    async def read(request: Request) -> None:
        for dependency in (before, after, broken):
            try:
                await solve(request, dependency)
            except (HTTPException, KeyError) as error:
                errors.append(getattr(error, "detail", error.args[0]))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        await client.get("/")
    assert errors == ["before", "after", "broken"]


async def test_overrides_are_those_of_the_app_of_the_request() -> None:
    """Two apps that solve one dependency at once have each their own."""
    together = asyncio.Barrier(2)

    async def name() -> str:
        raise AssertionError("not overridden")

    def app_of(value: str) -> FastAPI:
        async def override() -> str:
            await together.wait()
            return value

        app = FastAPI()
        app.dependency_overrides[name] = override

        @app.get("/")
        async def read(request: Request) -> str:
            return str(await solve(request, name))

        return app

    async def ask(app: FastAPI) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return str((await client.get("/")).json())

    async with asyncio.timeout(30):
        assert await asyncio.gather(ask(app_of("a")), ask(app_of("b"))) == ["a", "b"]


def test_a_parameter_is_found_at_any_depth() -> None:
    """By its name or alias, as part of a whole request, and where the annotations cannot be read."""

    class Rooms:
        def __init__(self, room: Annotated[str, Path(alias="room_id")]) -> None: ...

    def by_class(rooms: Annotated[Rooms, Depends()]) -> None: ...

    def by_default(rooms: Any = Depends(by_class)) -> None: ...  # noqa: B008 - as hosts write it

    def whole(request: Request) -> None: ...

    def unknown(room: "NotImported") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def other(room_id: Annotated[str, Query()], name: str) -> None: ...

    for dependency in (Rooms, by_class, by_default, whole, unknown):
        assert takes_parameter(dependency, "room_id"), dependency
    assert not takes_parameter(other, "room_id")
    assert takes_parameter(other, "name")
