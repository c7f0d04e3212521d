"""What the folders of the conformance suite share. Each conftest takes these by name."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Pool
from sqlalchemy.ext.asyncio import AsyncEngine

from store.invariants import faults
from store.replica import HandClock, Replica
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import Clock, Database, SessionDatabase
from zndraw_joblib.server.store.engine import open_database, open_engine, open_sessions
from zndraw_joblib.server.store.tables import metadata

# Each conftest that takes the fixtures has them for itself.
_numbers = itertools.count()

OpenDatabase = Callable[[Clock | None], Database]
OpenReplica = Callable[[], Replica]


every_kind = pytest.mark.parametrize(
    "kind", ["sqlite", "sqlite-of-a-host", "postgresql", "postgresql-of-a-host"]
)


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Run the test on either database; with `every_kind` on a host's sessions too.

    These go through SQLAlchemy's engines; what is our own takes shorter ways to SQLite and PostgreSQL.
    """
    return str(request.param)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"

    async def migrate() -> None:
        database = open_database(f"sqlite:///{path}")
        await schema.upgrade(database)
        await database.close()

    asyncio.run(migrate())
    return path


@pytest.fixture(scope="session")
def postgres_for_all(postgres: str) -> str:
    """Return the URL of one migrated PostgreSQL database; to empty it is far cheaper than to make another."""
    name = f"conformance_{next(_numbers)}"
    url = postgres.format(name)
    asyncio.run(_execute(postgres.format("postgres"), f"CREATE DATABASE {name}"))

    async def migrate() -> None:
        database = open_database(url)
        await schema.upgrade(database)
        await database.close()

    asyncio.run(migrate())
    return url


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@pytest.fixture
def database_url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Return the URL of a migrated, empty database."""
    if kind.startswith("sqlite"):
        return f"sqlite:///{shutil.copy(request.getfixturevalue('sqlite_template'), tmp_path / 'joblib.db')}"
    url: str = request.getfixturevalue("postgres_for_all")
    asyncio.run(empty(url))
    return url


async def empty(url: str) -> None:
    """Delete all rows of a PostgreSQL database."""
    emptied = [f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)]  # noqa: S608
    await _execute(url, "SET lock_timeout = '5s'", *emptied)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine on the test's database: a back door past the code under test."""
    engine = open_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def clock() -> HandClock:
    """Return a clock for the tests that say what time it is."""
    return HandClock()


@pytest.fixture
async def open_one(kind: str, database_url: str) -> AsyncIterator[OpenDatabase]:
    """Return a function that opens the test's database, each time with connections of its own."""
    pools: list[Pool] = []
    async with AsyncExitStack() as stack:

        def open_it(clock: Clock | None = None) -> Database:
            if not kind.endswith("of-a-host"):
                database = open_database(database_url, clock)
                stack.push_async_callback(database.close)  # waits for what is not given back
                return database
            engine = open_engine(database_url)
            stack.push_async_callback(engine.dispose)
            pools.append(engine.pool)
            return SessionDatabase(open_sessions(engine), clock)

        yield open_it
        assert [pool.checkedout() for pool in pools] == [0] * len(pools), "a connection was not given back"


@pytest.fixture
async def open_replica(
    open_one: OpenDatabase, engine: AsyncEngine, settings: ServerSettings
) -> AsyncIterator[OpenReplica]:
    """Return a function that starts a server process on the test's database; it finishes what it writes."""
    opened: list[Replica] = []

    def open_it() -> Replica:
        opened.append(Replica(open_one(None), engine, settings))
        return opened[-1]

    yield open_it
    for replica in opened:
        await replica.runtime.finish()


@pytest.fixture
def replica(open_replica: OpenReplica) -> Replica:
    """Return a server process."""
    return open_replica()


@pytest.fixture
async def timed(
    open_one: OpenDatabase, engine: AsyncEngine, settings: ServerSettings, clock: HandClock
) -> AsyncIterator[Replica]:
    """Return a server process whose time is `clock`'s."""
    replica = Replica(open_one(clock), engine, settings)
    yield replica
    await replica.runtime.finish()


@pytest.fixture(params=[1, 2], ids=["one-process", "two-replicas"])
def pair(request: pytest.FixtureRequest, replica: Replica, open_replica: OpenReplica) -> list[Replica]:
    """Return two ends to work from: one replica twice, or two replicas."""
    return [replica, open_replica() if request.param == 2 else replica]


@pytest.fixture(autouse=True)
def nothing_out_of_order(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test all invariants hold in its database, and no connection is checked out."""
    if "engine" not in request.fixturenames:
        yield
        return
    url: str = request.getfixturevalue("database_url")
    engine: AsyncEngine = request.getfixturevalue("engine")
    yield
    assert engine.pool.checkedout() == 0, "a connection was not given back"
    assert faults(url) == []
