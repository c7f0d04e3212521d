"""The asynchronous driver: sends the requests of flows with an `AsyncConnection`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx

from zndraw_joblib.client.api import AsyncConnection
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.explaining import Explain, raise_explained
from zndraw_joblib.client.flows import Flow, drive_async

T = TypeVar("T")


class AsyncRest:
    """Sends requests to one server. Use it in one event loop at a time."""

    def __init__(self, api: AsyncConnection, explain: Explain) -> None:
        self.api = api
        self.explain = explain
        self.has_reached = False

    async def run(self, flow: Flow[T]) -> T:
        """Return the result of a flow. An error is raised as `explain` returns it."""
        try:
            return await drive_async(flow, self.send_call)
        except Exception as error:
            raise_explained(error, self.explain)

    async def send_call(self, call: Call[T]) -> T:
        """Send a request and return its result."""
        response = await self.api.http.request(**call.request(self.api))
        self.has_reached = True
        return call.result(response, self.api)

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its response, whose content is read piece by piece."""
        async with self.api.http.stream(**call.request(self.api)) as response:
            self.has_reached = True
            if not response.is_success:
                await response.aread()
            call.check(response, self.api)
            yield response
