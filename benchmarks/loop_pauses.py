"""The longest pauses of a server's event loop, and its longest transactions: `GET /pauses` returns both.

A pause is how much later than asked a task of the loop runs that sleeps for a millisecond. A transaction
takes from its start, when SQLite has its lock, until its commit has returned to the loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI

from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.postgres import PostgresDatabase
from zndraw_joblib.server.db.sqlite import SqliteDatabase

_STEP_SECONDS = 0.001


class _Probe:
    """The longest of both since they were read last, in seconds."""

    def __init__(self) -> None:
        self._pause = self._transaction = 0.0
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> dict[str, float]:
        """Return both, and measure from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(2 * _STEP_SECONDS)  # the task sees the last pause
        values = {"pause": self._pause, "transaction": self._transaction}
        self._pause = self._transaction = 0.0
        return values

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_STEP_SECONDS)
            self._pause = max(self._pause, time.perf_counter() - began - _STEP_SECONDS)

    def prepared(self, prepare: Callable[[Database, Transaction], Transaction]) -> Any:
        """Return a function that also records when a transaction began."""

        def prepare_and_record(database: Database, tx: Transaction) -> Transaction:
            vars(tx)["began"] = time.perf_counter()
            return prepare(database, tx)

        return prepare_and_record

    def written(self, write: Callable[..., Awaitable[tuple[Any, Transaction]]]) -> Any:
        """Return a function that also records how long its transaction took."""

        async def write_and_record(*args: Any, **kwargs: Any) -> tuple[Any, Transaction]:
            result, tx = await write(*args, **kwargs)
            self._transaction = max(self._transaction, time.perf_counter() - vars(tx)["began"])
            return result, tx

        return write_and_record


def add_probe(app: FastAPI) -> None:
    """Measure the pauses and the transactions of this process from the first request on."""
    probe = _Probe()
    for owner, name, wrap in (
        (Database, "prepared", probe.prepared),
        (SqliteDatabase, "_write", probe.written),
        (PostgresDatabase, "_write", probe.written),
    ):
        setattr(owner, name, wrap(getattr(owner, name)))
    app.add_api_route("/pauses", probe.read)
