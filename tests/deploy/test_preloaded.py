"""An app that is created before a fork, as `gunicorn --preload` does, works in each child process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import socketio
from rest import register, submit
from waiting import until

_FORK = """
import os, signal, socket, sys
import uvicorn
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

app = create_app(ServerSettings())
for number in sys.argv[1:]:
    if os.fork() == 0:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        server.run([socket.socket(fileno=int(number))])
        os._exit(0)
for _ in sys.argv[1:]:
    os.wait()
"""
TOKEN = "a-token-for-a-forked-server"


@pytest.fixture(params=["postgresql", "valkey"])
def urls(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[list[str]]:
    """Fork two servers after the app was created; return their URLs."""
    settings = {"DATABASE_URL": postgres_url, "ADMIN_TOKEN": TOKEN}
    if request.param == "valkey":
        settings["REDIS_URL"] = request.getfixturevalue("valkey_url")
        settings["REDIS_PREFIX"] = f"preloaded-{os.getpid()}"
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    numbers = [listener.fileno() for listener in listeners]
    process = subprocess.Popen(
        [sys.executable, "-c", _FORK, *map(str, numbers)],
        pass_fds=numbers,
        env={**os.environ, **{f"ZNDRAW_JOBLIB_{name}": value for name, value in settings.items()}},
        start_new_session=True,
    )
    yield [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    for listener in listeners:
        listener.close()


async def test_forked_servers_notify_each_other(urls: list[str]) -> None:
    """An event of one server reaches a socket of the other one, in both directions."""
    sockets = [socketio.AsyncClient(reconnection=False, request_timeout=30) for _ in urls]
    received: list[list[object]] = [[], []]
    for each, found, url in zip(sockets, received, urls, strict=True):
        each.on("task_status_event", found.append)
        await each.connect(url, auth={"token": TOKEN}, transports=["websocket"], wait_timeout=30)
        assert await each.call("join_room", {"room_id": "lab"}) == {}
    for url, other in zip(urls, reversed(received), strict=True):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as rest:
            job = await register(rest)

            async def arrives(
                rest: httpx.AsyncClient = rest, job: object = job, other: object = other
            ) -> object:
                await submit(rest, job)
                return other

            await until(arrives, interval=0.5)
    await asyncio.gather(*[each.disconnect() for each in sockets])
