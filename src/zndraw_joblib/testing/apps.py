"""The database and the smallest app of a test."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI

from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database


def make_database(path: Path) -> None:
    """Create a SQLite file with the queue's tables."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(_migrate(f"sqlite:///{path}"))


async def _migrate(url: str) -> None:
    database = open_database(url)
    try:
        await schema.upgrade(database)
    finally:
        await database.close()


async def current_user() -> Identity:
    """Return the only user of the smallest app, a superuser."""
    return Identity("tester", is_superuser=True)


@contextmanager
def smallest_app(path: Path) -> Iterator[FastAPI]:
    """Return an app with nothing but a queue on a SQLite file. Each caller is the superuser ``tester``."""
    database = open_database(f"sqlite:///{path}")
    app = FastAPI()
    JobLib(session_maker=database, identity=current_user).mount(app)
    try:
        yield app
    finally:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(database.close())
