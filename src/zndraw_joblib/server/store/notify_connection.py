"""Pub/sub between replicas over PostgreSQL: LISTEN and NOTIFY on one connection."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

_CHANNEL = "zndraw_joblib"
_MARK = "zndraw_joblib.session"


class NotifyConnection:
    """Publishes texts to every listener of the same database, including itself, on an asyncpg connection."""

    frame_size = 7_900  # PostgreSQL takes less than 8,000 bytes

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def send(self, text: str) -> None:
        """Send ASCII text of at most `frame_size` characters."""
        await self._connection.fetchval("SELECT pg_notify($1, $2)", _CHANNEL, text)

    async def mark_session(self) -> str:
        """Set a variable of the session, and return its value."""
        mark = uuid4().hex
        # Without parameters it is a simple query, which every pooler passes on.
        await self._connection.execute(f"SELECT set_config('{_MARK}', '{mark}', false)")
        return mark

    async def has_mark(self, mark: str) -> bool:
        """Return whether the next statement runs in the session with this mark."""
        condition = f"current_setting('{_MARK}', true) = '{mark}'"
        status = await self._connection.execute(f"SELECT 1 WHERE {condition}")
        return bool(status == "SELECT 1")

    async def listen(self, receive: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Call `receive` with each text after `ready`. Raises ConnectionError when the connection is lost."""
        lost = asyncio.get_running_loop().create_future()

        def end(_: Any) -> None:
            if not lost.done():
                lost.set_exception(ConnectionError("PostgreSQL closed the connection"))

        def take(_: Any, __: int, ___: str, text: str) -> None:
            receive(text)

        self._connection.add_termination_listener(end)
        await self._connection.add_listener(_CHANNEL, take)
        ready()
        await lost
