"""A client of Server-Sent Events, and a file of what it got."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
from rest import V1

# The token of `tests/conftest.py`, which cannot be imported beside other conftest modules.
ADMIN_TOKEN = "admin-token-of-the-tests"
STREAM = {"Accept": "text/event-stream"}
TIMEOUT = 60.0


class Sse(NamedTuple):
    """One event of a stream; `data` is parsed."""

    event: str
    id: int | None
    data: Any


async def parse(lines: AsyncIterator[str]) -> AsyncIterator[Sse]:
    """Yield the events of a stream; skip comments and the time for reconnects."""
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif not line and "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            yield Sse(fields["event"], number, json.loads(fields["data"]))
            fields = {}
        elif not line:
            fields = {}


class Reader:
    """Reads a stream in the background and keeps its events, until `close` or the end of the stream."""

    def __init__(
        self, client: httpx.AsyncClient, path: str, last_id: int | None = None, **params: Any
    ) -> None:
        self.events: list[Sse] = []
        self.response: httpx.Response | None = None
        self._is_new = asyncio.Event()
        self._last_id = last_id
        self._reading = asyncio.create_task(self._read(client, f"{V1}/{path}/events", params))

    async def _read(self, client: httpx.AsyncClient, url: str, params: dict[str, Any]) -> None:
        headers = STREAM | ({} if self._last_id is None else {"Last-Event-ID": str(self._last_id)})
        async with client.stream("GET", url, headers=headers, params=params, timeout=TIMEOUT) as response:
            self.response = response
            if response.status_code != 200:
                await response.aread()
                return
            async for event in parse(response.aiter_lines()):
                self.events.append(event)
                self._is_new.set()

    async def until(self, count: int) -> list[Sse]:
        """Return the events once there are so many."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.events) < count:
                if self._reading.done():
                    self._reading.result()
                    raise AssertionError(f"the stream ended: {self.response} {self.events}")
                self._is_new.clear()
                waiting = asyncio.create_task(self._is_new.wait())
                await asyncio.wait([waiting, self._reading], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        return self.events

    async def ended(self) -> list[Sse]:
        """Return all events, after the server has ended the stream."""
        async with asyncio.timeout(TIMEOUT):
            await self._reading
        return self.events

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
