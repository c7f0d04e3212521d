"""A real PgBouncer in front of PostgreSQL: its session mode works, and a server refuses the other modes."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from rest import V1, claim, register, report, submit
from servers import ServerProcess, free_port
from sqlalchemy import make_url
from waiting import until

from zndraw_joblib.server.db import schema

_ROOT = Path(__file__).parents[2] / ".pgbouncer/root"
pytestmark = [pytest.mark.slow, pytest.mark.processes]
Start = Callable[[str], "PgBouncer"]


class PgBouncer:
    """A PgBouncer in front of one database."""

    def __init__(self, folder: Path, database_url: str, mode: str) -> None:
        url = make_url(database_url)
        socket = Path(str(url.query["host"]))
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/{url.database}"
        self._config = folder / f"{mode}.ini"
        self._config.write_text(
            f"[databases]\n* = host={socket} port=5432 user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self._port}\nauth_type = any\npool_mode = {mode}\nunix_socket_dir =\n"
            "default_pool_size = 60\n"
        )
        # It does not run as root.
        self._user = (socket / ".s.PGSQL.5432").stat().st_uid
        self.start()

    def start(self) -> None:
        """Start it."""
        libraries = ":".join(map(str, _ROOT.glob("usr/lib/*-linux-gnu*")))
        self.process = subprocess.Popen(
            [_ROOT / "usr/sbin/pgbouncer", self._config],
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            user=self._user if os.getuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def _folder() -> Iterator[Path]:
    # The user of PgBouncer has to read it.
    folder = Path(tempfile.mkdtemp(prefix="joblib-pgbouncer-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def start(postgres_url: str) -> Iterator[Start]:
    """Return a function that starts PgBouncer in a mode, in front of a migrated database."""
    if not _ROOT.exists():
        pytest.skip("PgBouncer is not there, so this test did not run: `make pgbouncer` sets it up")
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())

        def started(mode: str) -> PgBouncer:
            pgbouncer = PgBouncer(folder, postgres_url, mode)
            stack.callback(pgbouncer.kill)
            return pgbouncer

        yield started


async def test_two_servers_use_session_pooling(start: Start) -> None:
    """A submit at one server wakes a claim that waits at the other, also after PgBouncer was killed."""
    pgbouncer = start("session")
    with ServerProcess(pgbouncer.url) as one, ServerProcess(pgbouncer.url) as two:
        async with one.client() as first, two.client() as second:
            job = await register(first)
            await complete_one(first, second, job)
            pgbouncer.kill()
            pgbouncer.start()

            async def is_back() -> bool:
                answers = [await client.get("/health/ready") for client in (first, second)]
                return all(answer.status_code == 200 for answer in answers)

            await until(is_back)
            await complete_one(first, second, job)


async def complete_one(first: httpx.AsyncClient, second: httpx.AsyncClient, job: dict[str, str]) -> None:
    """Claim a task at the second server that is submitted to the first one meanwhile."""
    body = {"worker_id": job["worker_id"]}
    headers = {"Prefer": "wait=30"}
    waiting = asyncio.create_task(second.post(f"{V1}/tasks/claim", json=body, headers=headers))
    await submit(first, job)
    task = (await waiting).json()["task"]
    assert task is not None
    assert (await report(second, task, "running", attempt=task["attempt"])).status_code == 200
    assert (await report(second, task, "completed", attempt=task["attempt"])).status_code == 200
    assert await claim(first, job["worker_id"]) is None


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("transaction", "pool_mode = session"), ("statement", "not allowed in statement pooling mode")],
)
async def test_other_modes_are_refused(start: Start, mode: str, reason: str) -> None:
    """A server does not start, and says what to do."""
    url = start(mode).url

    async def refusal() -> str:
        try:
            async with schema.connected(url) as database:
                await schema.prepare(database)
        except schema.UnusableDatabase as error:
            return str(error)
        return ""

    async def is_named() -> bool:
        return reason in await refusal()

    await until(is_named)
