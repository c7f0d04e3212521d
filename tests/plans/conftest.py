"""Databases with a hundred thousand tasks, with and without statistics."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from databases import PostgresDatabases
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from plans.explained import Explainer
from plans.seeding import ANALYZE, SEEDS
from zndraw_joblib.server.db.engine import open_engine

KINDS = ["without statistics", "with statistics"]


@pytest.fixture(scope="session")
def seeded_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the URLs of two equal databases with many tasks, without and with statistics."""
    folder = tmp_path_factory.mktemp("plans")
    plain, analysed = folder / "plain.db", folder / "analysed.db"
    shutil.copy(sqlite_template, plain)
    asyncio.run(_run(f"sqlite:///{plain}", [*SEEDS["sqlite"], "PRAGMA wal_checkpoint(TRUNCATE)"]))
    shutil.copy(plain, analysed)
    asyncio.run(_run(f"sqlite:///{analysed}", ["ANALYZE"]))
    return dict(zip(KINDS, [f"sqlite:///{plain}", f"sqlite:///{analysed}"], strict=True))


@pytest.fixture(scope="session")
def seeded_postgresql(postgres: PostgresDatabases) -> dict[str, str]:
    """Return the URLs of two equal databases with many tasks, without and with statistics."""
    plain, analysed = postgres.url.format("plans_plain"), postgres.url.format("plans_analysed")

    async def seed() -> None:
        administer = await asyncpg.connect(postgres.url.format("postgres"))
        await administer.execute("CREATE DATABASE plans_plain TEMPLATE joblib_template")
        await _run(plain, SEEDS["postgresql"])
        await administer.execute("CREATE DATABASE plans_analysed TEMPLATE plans_plain")
        await administer.close()
        await _run(analysed, ANALYZE)

    asyncio.run(seed())
    return dict(zip(KINDS, [plain, analysed], strict=True))


async def _run(url: str, statements: list[str]) -> None:
    engine = open_engine(url)
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
            await connection.commit()
    await engine.dispose()


DATABASES = [(kind, known) for kind in ("sqlite", "postgresql") for known in KINDS]
on_postgresql = pytest.mark.parametrize("full_url", DATABASES[2:], ids="-".join, indirect=True)


@pytest.fixture(params=DATABASES, ids="-".join)
def full_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database with many tasks."""
    kind, known = request.param
    seeded: dict[str, str] = request.getfixturevalue(f"seeded_{kind}")
    return seeded[known]


@pytest.fixture
async def engine(full_url: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine on a database with many tasks. The explainer rolls back every transaction."""
    engine = open_engine(full_url)
    yield engine
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await engine.dispose()


@pytest.fixture
def explainer(engine: AsyncEngine) -> Iterator[Explainer]:
    """Return an object that captures statements and explains them."""
    with Explainer(engine) as explainer:
        yield explainer
