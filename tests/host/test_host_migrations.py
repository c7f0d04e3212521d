"""A host's own Alembic migrations do not touch the queue's tables."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncEngine

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "host_migrations" / "env.py"


class Project:
    """A host with migrations in a folder of its own."""

    def __init__(self, folder: Path, database_url: str) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._env = {**os.environ, "PYTHONPATH": path, "HOST_DATABASE_URL": database_url}
        self._folder = folder
        self.alembic("init", "-t", "async", "migrations")
        shutil.copy(EXAMPLE, folder / "migrations")

    def alembic(self, *arguments: str, code: int = 0) -> str:
        """Run a command of Alembic, and return its output."""
        command = [sys.executable, "-m", "alembic.config", *arguments]
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def revise(self, name: str) -> str:
        """Return the text of a new migration."""
        self.alembic("revision", "--autogenerate", "-m", name)
        [file] = (self._folder / "migrations" / "versions").glob(f"*_{name}.py")
        return file.read_text()

    def remove_filter(self) -> None:
        """Stop excluding the queue's tables."""
        env = self._folder / "migrations" / "env.py"
        env.write_text(env.read_text().replace(", include_object=alembic_include_object", ""))


@pytest.fixture
def project(tmp_path: Path, async_url: str) -> Project:
    """Return a host whose database has the queue's tables."""
    return Project(tmp_path, async_url)


async def table_names(engine: AsyncEngine) -> set[str]:
    """Return the names of all tables."""
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda c: inspect(c).get_table_names()))


async def test_autogenerate_leaves_the_tables_of_the_queue(project: Project, engine: AsyncEngine) -> None:
    """A first revision has the host's tables alone, and the next one is empty."""
    before = await table_names(engine)
    assert "joblib_worker" in before
    first = project.revise("first")
    assert "joblib" not in first
    assert "op.create_table('user'" in first
    project.alembic("upgrade", "head")
    assert await table_names(engine) == before | {"user", "room", "alembic_version"}
    assert "No new upgrade operations" in project.alembic("check")
    project.alembic("downgrade", "base")
    assert await table_names(engine) == before | {"alembic_version"}


async def test_without_the_helper_autogenerate_drops_the_tables(project: Project) -> None:
    """This is why hosts need the helper."""
    project.remove_filter()
    assert "op.drop_table('joblib_worker')" in project.revise("first")
