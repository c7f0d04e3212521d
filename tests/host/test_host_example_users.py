"""The example of a host with users of fastapi-users: its own tests, and its processes on real servers."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from databases import killing_on_both
from realtime.sockets import Socket
from waiting import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
HOST = ROOT / "examples" / "host"
SERVE = """
import socket, sys
from contextlib import suppress
import uvicorn
from examples.host.app import create_app

config = uvicorn.Config(create_app(), log_level="warning")
with suppress(KeyboardInterrupt):
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
"""
MIGRATE = f"""
from alembic.config import main
for command in (["upgrade", "head"], ["check"], ["downgrade", "base"], ["upgrade", "head"]):
    main(argv=["-c", {str(HOST / "alembic.ini")!r}, *command])
"""
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])


@pytest.fixture
def environment(request: pytest.FixtureRequest, kind: str, async_url: str) -> dict[str, str]:
    """Migrate the host's tables; return the variables of its processes. On PostgreSQL several need Redis.

    Afterwards the migrations agree with the models, and have left the queue's tables.
    """
    redis = {"HOST_REDIS_URL": request.getfixturevalue("valkey_url")} if kind == "postgresql" else {}
    secret = "a secret of tests, with at least 32 bytes"
    given = {"PYTHONPATH": PATH, "HOST_DATABASE_URL": async_url, "HOST_SECRET": secret, **redis}
    subprocess.run([sys.executable, "-c", MIGRATE], env=os.environ | given, cwd=ROOT, check=True, timeout=120)
    return os.environ | given


@contextmanager
def running(command: list[str], environment: dict[str, str], fd: int | None = None) -> Iterator[None]:
    """Run a program during a `with` block."""
    given = [] if fd is None else [fd]
    process = subprocess.Popen([*command, *map(str, given)], pass_fds=given, env=environment, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait(20)


@contextmanager
def serving(environment: dict[str, str]) -> Iterator[str]:
    """Run a process of the host; yield its URL."""
    # The socket listens before the server starts, so that early requests wait.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running([sys.executable, "-c", SERVE], environment, listener.fileno()):
            yield url


async def sign_up(url: str, name: str) -> tuple[str, str]:
    """Create a user; return its id and a token."""
    account = {"email": f"{name}@example.com", "password": f"password of {name}"}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        user = await client.post("/auth/register", json=account)
        form = {"username": account["email"], "password": account["password"]}
        token = await client.post("/auth/login", data=form)
        return user.json()["id"], token.json()["access_token"]


@killing_on_both
async def test_a_simulation_runs_across_the_processes_of_the_host(environment: dict[str, str]) -> None:
    """One process takes the request; the worker and the user's socket are at the other one."""
    with ExitStack() as stack:
        here = stack.enter_context(serving(environment))
        there = stack.enter_context(serving(environment)) if "HOST_REDIS_URL" in environment else here
        _, root = await sign_up(here, "root")
        ada_id, ada = await sign_up(here, "ada")
        listener = Socket()
        await listener.client.connect(there, headers={"Authorization": f"Bearer {ada}"}, wait_timeout=30)
        try:
            assert await listener.call("join_room", room_id=ada_id) == {}
            worker = [sys.executable, "-m", "zndraw_joblib", "worker", str(HOST / "worker.py")]
            access = {"ZNDRAW_JOBLIB_URL": there, "ZNDRAW_JOBLIB_TOKEN": root}
            stack.enter_context(running(worker, {**environment, **access}))
            async with httpx.AsyncClient(
                base_url=here, headers={"Authorization": f"Bearer {ada}"}, timeout=60
            ) as client:
                await until(lambda: has_job(client))
                started = await client.post("/simulations", json={"steps": 2})
                assert started.status_code == 202, started.text
                await until(lambda: has_energy(client, 25.0))
                # Events of the other process come over Redis, so in another order; its manager subscribes
                # some time after the first socket has connected.
                await until(lambda: statuses_of(listener) >= {"claimed", "running", "completed"})
                assert statuses_of(listener) <= {"pending", "claimed", "running", "completed"}
        finally:
            await listener.disconnect()


def statuses_of(listener: Socket) -> set[str]:
    """Return the task statuses among the events."""
    return {data["status"] for event, data in listener.received if event == "task_status_event"}


async def has_job(client: httpx.AsyncClient) -> bool:
    """Return whether the worker has registered its job."""
    return bool((await client.get("/v1/joblib/rooms/@global/jobs")).json()["total"])


async def has_energy(client: httpx.AsyncClient, energy: float) -> bool:
    """Return whether the host has stored the result of the only simulation."""
    [simulation] = (await client.get("/simulations")).json()
    return bool(simulation["energy"] == energy)


async def test_the_tests_of_the_example_pass() -> None:
    """The host's own suite, with the fixtures of `zndraw_joblib.testing`."""
    command = [sys.executable, "-m", "pytest", "-p", "zndraw_joblib.testing.plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = await asyncio.to_thread(
        subprocess.run, command, cwd=HOST, env=environment, capture_output=True, text=True, timeout=120
    )
    assert "5 passed" in ran.stdout, ran.stdout + ran.stderr
