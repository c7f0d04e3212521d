"""The queue's use of FastAPI's dependency solver, which has no public interface."""

from collections.abc import AsyncIterator
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError

from zndraw_joblib.server.http.fastapi_internals import solve


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
