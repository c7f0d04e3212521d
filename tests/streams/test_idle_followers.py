"""Rooms that nobody reads any more are followed for a short time, and only a bounded number of them."""

import httpx
import pytest
from rest import V1

from zndraw_joblib.server.settings import ServerSettings


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
