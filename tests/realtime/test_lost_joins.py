"""A socket that is lost while it joins a room leaves nothing behind."""

import asyncio

import pytest
from rest import V1
from waiting import until

from realtime.sockets import LiveServer, Socket
from zndraw_joblib.server.process.settings import ServerSettings

SOCKETS = 40


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Remove a worker as soon as it loses its last socket."""
    settings.disconnect_grace_seconds = 0
    return settings


async def drop_while_joining(server: LiveServer, number: int, event: str) -> None:
    """Register a worker, let a socket of it join, and close the connection a moment later."""
    rest = await server.rest()
    kind, field = ("providers", "provider_name") if event == "join_provider_room" else ("jobs", "job_name")
    body = {"category": "modifiers", "name": f"Name{number}", "schema": {}}
    url = f"{V1}/rooms/@global/{kind}"
    registered = (await rest.put(url, json=body)).json()
    socket: Socket = await server.connect()
    await socket.client.emit(event, {field: registered["full_name"], "worker_id": registered["worker_id"]})
    await asyncio.sleep(number % 20 / 2000)
    await socket.client.eio.disconnect(abort=True)


@pytest.mark.parametrize("event", ["join_provider_room", "join_job_room"])
async def test_a_socket_that_is_lost_during_a_join_is_forgotten(server: LiveServer, event: str) -> None:
    """Then the worker's grace period begins, and the worker is removed."""
    assert server.rooms is not None
    rooms = server.rooms
    for number in range(SOCKETS):
        await drop_while_joining(server, number, event)
    await until(lambda: rooms.is_idle)
    rest = await server.rest()

    async def has_removed_joined_workers() -> bool:
        return (await rest.get(f"{V1}/workers")).json()["total"] < SOCKETS

    await until(has_removed_joined_workers)
