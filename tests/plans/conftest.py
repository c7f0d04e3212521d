"""A hundred thousand tasks on each database, with and without statistics."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from store.fixtures import sqlite_template  # noqa: F401 - pytest finds fixtures here, by their names

from plans.explained import Explainer
from plans.seeding import SEEDS
from zndraw_joblib.server.store.engine import open_engine


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def seeded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the URLs of two equal databases full of tasks: one without statistics, one with."""
    if request.param == "sqlite":
        return _seed_sqlite(request.getfixturevalue("sqlite_template"), tmp_path_factory.mktemp("plans"))
    return asyncio.run(_seed_postgresql(request.getfixturevalue("postgres")))


def _seed_sqlite(template: Path, folder: Path) -> dict[str, str]:
    plain, analysed = folder / "plain.db", folder / "analysed.db"
    shutil.copy(template, plain)
    asyncio.run(_run(f"sqlite:///{plain}", [*SEEDS["sqlite"], "PRAGMA wal_checkpoint(TRUNCATE)"]))
    shutil.copy(plain, analysed)
    asyncio.run(_run(f"sqlite:///{analysed}", ["ANALYZE"]))
    return {"without statistics": f"sqlite:///{plain}", "with statistics": f"sqlite:///{analysed}"}


async def _seed_postgresql(server: str) -> dict[str, str]:
    administer = await asyncpg.connect(server.format("postgres"))
    await administer.execute("CREATE DATABASE plans_plain TEMPLATE joblib_template")
    await _run(server.format("plans_plain"), SEEDS["postgresql"])
    await administer.execute("CREATE DATABASE plans_analysed TEMPLATE plans_plain")
    await administer.close()
    await _run(server.format("plans_analysed"), ["ANALYZE"])
    return {
        "without statistics": server.format("plans_plain"),
        "with statistics": server.format("plans_analysed"),
    }


async def _run(url: str, statements: list[str]) -> None:
    engine = open_engine(url)
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
            await connection.commit()
    await engine.dispose()


@pytest.fixture(params=["without statistics", "with statistics"])
async def engine(request: pytest.FixtureRequest, seeded: dict[str, str]) -> AsyncIterator[AsyncEngine]:
    """Return an engine on a full database; what a test does in it is rolled back."""
    engine = open_engine(seeded[request.param])
    yield engine
    assert engine.pool.checkedout() == 0
    await engine.dispose()


@pytest.fixture
def explainer(engine: AsyncEngine) -> Iterator[Explainer]:
    """Return who listens to statements and asks the database for their plans."""
    with Explainer(engine) as explainer:
        yield explainer
