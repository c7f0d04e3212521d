"""Rooms that nobody reads any more are followed for a short time, and only a bounded number of them."""

import httpx
import pytest
from rest import V1, expect_problem
from sqlalchemy.ext.asyncio import AsyncEngine

from streams.sse import STREAM
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store.room_events import streams as rooms


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Return settings that allow few streams."""
    settings.max_streams = 3
    return settings


async def test_followers_of_many_rooms(client: httpx.AsyncClient) -> None:
    """A client that reads each room once leaves no more followers than streams may be open."""
    streams = client._transport.app.state.joblib.streams  # type: ignore[attr-defined]
    first = (await client.get(f"{V1}/rooms/room-0/events")).json()["next"]
    for number in range(1, 10):
        assert (await client.get(f"{V1}/rooms/room-{number}/events")).status_code == 200
        assert len(streams.followed_rooms) <= 3
    assert streams.followed_rooms == ["room-7", "room-8", "room-9"]
    again = (await client.get(f"{V1}/rooms/room-0/events", params={"after": first})).json()
    assert again == {"events": [], "next": first, "ended": False}


async def test_the_number_of_watched_rooms_is_bounded(
    client: httpx.AsyncClient, settings: ServerSettings, engine: AsyncEngine
) -> None:
    """Streams of further rooms are refused, those of watched rooms are not; a deleted log makes space."""
    settings.max_watched_rooms = 2
    for room in ("a", "b", "a"):
        assert (await client.get(f"{V1}/rooms/{room}/events")).status_code == 200
    for accept in ({}, STREAM):
        refused = await client.get(f"{V1}/rooms/c/events", headers=accept)
        assert "max_watched_rooms" in expect_problem(refused, 503, "service-unavailable")["detail"]
        assert int(refused.headers["Retry-After"]) > 0
    assert client._transport.app.state.joblib.streams.followed_rooms == ["a", "b"]  # type: ignore[attr-defined]
    async with engine.begin() as connection:
        await connection.execute(rooms.delete().where(rooms.c.room_id == "a"))
    assert (await client.get(f"{V1}/rooms/c/events")).status_code == 200
