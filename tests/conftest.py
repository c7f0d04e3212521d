"""Real databases, servers and clients for all tests."""

import gc
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Certificate, new_certificate
from databases import OpenDatabase, PostgresDatabases, migrate, start_postgres
from fastapi import FastAPI
from invariants import broken_invariants
from replica import ManualClock, OpenReplica, Replica
from servers import start_valkey
from sqlalchemy import Pool
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.db.database import Clock, Database
from zndraw_joblib.server.db.engine import open_database, open_engine, open_sessions
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

ADMIN_TOKEN = "admin-token-of-the-tests"


def pytest_configure() -> None:
    """Handle SIGINT: a shell in the background ignores it, and child processes would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


SERVERS = {"postgres", "postgres_url", "empty_postgres_url", "valkey_url"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs PostgreSQL or Valkey as `processes`. Tests that start other processes have the mark."""
    for item in items:
        names = {*getattr(item, "fixturenames", []), *re.findall(r"postgres_url|postgresql|redis", item.name)}
        if names & {*SERVERS, "postgresql", "redis"}:
            item.add_marker(pytest.mark.processes)
    keep_folders_together(items)


def keep_folders_together(items: list[pytest.Item]) -> None:
    """Sort the tests by their folder, and leave the random order of the folders and in them.

    The tests of a folder share servers and browsers, which each process of xdist starts for itself.
    """
    folders: dict[Path, int] = {}
    for item in items:
        folders.setdefault(item.path.parent, len(folders))
    items.sort(key=lambda item: folders[item.path.parent])


def pytest_collection_finish() -> None:
    """Exclude the modules and tests that are loaded from garbage collections: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_report_to_serializable(report: Any) -> None:
    """Escape what UTF-8 cannot express in captured logs: pytest-xdist cannot transfer it."""
    if isinstance(report, pytest.TestReport):
        report.sections = [
            (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
        ]


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture no logs of servers that earlier tests of this process left running in threads of their own."""
    others = set(threading.enumerate()) - {threading.current_thread()}

    def is_own(_: object) -> bool:
        return threading.current_thread() not in others

    caplog.handler.addFilter(is_own)
    yield caplog
    caplog.handler.removeFilter(is_own)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Return the files of a new certificate of 127.0.0.1."""
    return new_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresDatabases]:
    """Start a PostgreSQL server with a migrated template database."""
    # Not in pytest's temporary folder: another run of pytest may remove old folders there.
    folder = Path(tempfile.mkdtemp(prefix="joblib-postgres-"))
    server = start_postgres(folder)
    databases = PostgresDatabases(f"postgresql://postgres@/{{}}?host={folder}")
    databases.sync_no_files()
    databases.make_template()
    yield databases
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: PostgresDatabases) -> Iterator[str]:
    """Return the URL of a migrated PostgreSQL database without rows, for one test."""
    name = postgres.take()
    yield postgres.url.format(name)
    postgres.give_back(name)


@pytest.fixture
def empty_postgres_url(postgres: PostgresDatabases) -> Iterator[str]:
    """Return the URL of a PostgreSQL database without tables."""
    name = postgres.create(empty=True)
    yield postgres.url.format(name)
    postgres.drop(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """Return the URL of a migrated SQLite file, for one test."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'joblib.db')}"


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """Start a Valkey server, and return its URL."""
    server = start_valkey()
    yield server.connection_url
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Run the test on either database; with `every_kind` also through a host's SQLAlchemy sessions."""
    return str(request.param)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, kind: str) -> str:
    """Return the URL of a migrated database without rows."""
    url: str = request.getfixturevalue("sqlite_url" if kind.startswith("sqlite") else "postgres_url")
    return url


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine on the test's database, for direct access without the code under test."""
    engine = open_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings that a test may change."""
    return ServerSettings(database_url=database_url, admin_token=ADMIN_TOKEN)


@asynccontextmanager
async def running(
    app: FastAPI, token: str = ADMIN_TOKEN, kind: type[httpx.ASGITransport] = httpx.ASGITransport
) -> AsyncIterator[httpx.AsyncClient]:
    """Run an app's lifespan; yield a client in this process that sends `token`."""
    transport = kind(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client


@pytest.fixture
def transport() -> type[httpx.ASGITransport]:
    """Return how clients reach the server. `forms.transport` replaces it."""
    return httpx.ASGITransport


@pytest.fixture
def app(settings: ServerSettings) -> FastAPI:
    """Return a standalone app on either database. `client` runs it."""
    return create_app(settings)


@pytest.fixture
async def client(app: FastAPI, transport: type[httpx.ASGITransport]) -> AsyncIterator[httpx.AsyncClient]:
    """Return a superuser's client of the running app."""
    async with running(app, kind=transport) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock for the tests that set the time."""
    return ManualClock()


@pytest.fixture
async def new_database(kind: str, database_url: str, settings: ServerSettings) -> AsyncIterator[OpenDatabase]:
    """Return a function that opens the test's database, each time with connections of its own."""
    pools: list[Pool] = []
    async with AsyncExitStack() as stack:

        def open_it(clock: Clock | None = None) -> Database:
            if not kind.endswith("of-a-host"):
                database = open_database(database_url, clock, Limits.of(settings))
                stack.push_async_callback(database.close)  # waits until every connection is returned
                return database
            engine = open_engine(database_url)
            stack.push_async_callback(engine.dispose)
            pools.append(engine.pool)
            return SessionDatabase(open_sessions(engine), clock, Limits.of(settings))

        yield open_it
        assert [pool.checkedout() for pool in pools] == [0] * len(pools), (  # type: ignore[attr-defined]
            "a connection was not returned to its pool"
        )


@pytest.fixture
def recheck_seconds() -> tuple[float, float]:
    """Return the first and the longest interval of the recheck for lost wake-ups."""
    return 1.0, 5.0


@pytest.fixture
async def open_replica(
    new_database: OpenDatabase,
    engine: AsyncEngine,
    settings: ServerSettings,
    recheck_seconds: tuple[float, float],
) -> AsyncIterator[OpenReplica]:
    """Return a function that starts a replica on the test's database. At the end its writes finish."""
    opened: list[Replica] = []

    def open_it() -> Replica:
        opened.append(Replica(new_database(None), engine, settings, recheck_seconds))
        return opened[-1]

    yield open_it
    for replica in opened:
        await replica.runtime.finish()


@pytest.fixture
def replica(open_replica: OpenReplica) -> Replica:
    """Return a replica."""
    return open_replica()


@pytest.fixture
async def timed(
    new_database: OpenDatabase,
    engine: AsyncEngine,
    settings: ServerSettings,
    clock: ManualClock,
    recheck_seconds: tuple[float, float],
) -> AsyncIterator[Replica]:
    """Return a replica whose time is that of `clock`."""
    replica = Replica(new_database(clock), engine, settings, recheck_seconds)
    yield replica
    await replica.runtime.finish()


@pytest.fixture(params=[1, 2], ids=["one-process", "two-replicas"])
def pair(request: pytest.FixtureRequest, replica: Replica, open_replica: OpenReplica) -> list[Replica]:
    """Return two replicas to send requests to: the same one twice, or two different ones."""
    return [replica, open_replica() if request.param == 2 else replica]


@pytest.fixture(autouse=True)
def check_invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that opens the database, check the invariants and that all connections are returned."""
    if "new_database" not in request.fixturenames:
        yield
        return
    url: str = request.getfixturevalue("database_url")
    engine: AsyncEngine = request.getfixturevalue("engine")
    yield
    assert engine.pool.checkedout() == 0, "a connection was not returned to its pool"  # type: ignore[attr-defined]
    assert broken_invariants(url) == []
