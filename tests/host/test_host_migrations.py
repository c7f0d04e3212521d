"""A host's own Alembic migrations do not touch the queue's tables."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from databases import on_both
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncEngine

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "host_migrations" / "env.py"


# Creates a host's migrations and runs commands in one process, because its start takes most of the time.
RUN = """
import json, sys
from alembic.config import main
commands, example, old, new = json.load(sys.stdin)
main(argv=["init", "-t", "async", "migrations"])
env = open(example).read()
assert old in env
open("migrations/env.py", "w").write(env.replace(old, new))
for argv in commands:
    main(argv=argv)
"""
FILTER = ", include_object=alembic_include_object"
REVISION = ["revision", "--autogenerate", "-m", "first"]


@pytest.fixture
def alembic(tmp_path: Path, async_url: str) -> Callable[..., str]:
    """Return a function that runs commands of Alembic as the example host; it returns the first revision."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "HOST_DATABASE_URL": async_url}

    def run(*commands: list[str], env_has: str = FILTER) -> str:
        text = json.dumps([commands, str(EXAMPLE), FILTER, env_has])
        command = [sys.executable, "-c", RUN]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        [file] = (tmp_path / "migrations" / "versions").glob("*_first.py")
        return file.read_text()

    return run


async def table_names(engine: AsyncEngine) -> set[str]:
    """Return the names of all tables."""
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda c: inspect(c).get_table_names()))


@on_both
async def test_autogenerate_leaves_the_tables_of_the_queue(
    alembic: Callable[..., str], engine: AsyncEngine
) -> None:
    """A first revision has the host's tables alone, and after it there is nothing to change."""
    before = await table_names(engine)
    assert "joblib_worker" in before
    first = alembic(REVISION, ["upgrade", "head"], ["check"])
    assert "joblib" not in first
    assert "op.create_table('user'" in first
    assert await table_names(engine) == before | {"user", "room", "alembic_version"}


@pytest.mark.slow
@on_both
async def test_without_the_helper_autogenerate_drops_the_tables(alembic: Callable[..., str]) -> None:
    """This is why hosts need the helper."""
    assert "op.drop_table('joblib_worker')" in alembic(REVISION, env_has="")
