"""The driver of flows: sends their requests with the client of one connection.

`client.rest` has the same for programs without an event loop; `make generate` writes it from this module.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Body, Call, Model
from zndraw_joblib.client.connection import AsyncConnection, Explain, as_it_is, raise_explained
from zndraw_joblib.client.flows import Flow, Pause
from zndraw_joblib.wire.operations import Operation

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncRest:
    """Sends requests to one server, and runs flows.

    It raises what the client's `raise_for_status` raises, with the server's problem as its cause, or with an
    `UnexpectedResponse`, if the response is not from a zndraw-joblib server.
    """

    def __init__(self, api: AsyncConnection, explain: Explain = as_it_is) -> None:
        self.api = api
        self.explain = explain
        self.has_reached = False

    async def run(self, flow: Flow[T]) -> T:
        """Return the result of a flow; wait while it waits. An error is raised as `explain` returns it."""
        response: Any = None
        error: BaseException | None = None
        try:
            while True:
                effect = flow.send(response) if error is None else flow.throw(error)
                response = error = None
                try:
                    if isinstance(effect, Pause):
                        await asyncio.sleep(effect.seconds)
                    else:
                        response = await self.send_call(effect)
                except BaseException as caught:
                    error = caught
        except StopIteration as end:
            result: T = end.value
            return result
        except Exception as caught:
            raise_explained(caught, self.explain)

    async def send_call(self, call: Call[T]) -> T:
        """Send a request and return its result."""
        response = await self.api.http.request(**call.request(self.api))
        self.has_reached = True
        return call.result(response, self.api)

    async def send(self, operation: Operation[Model], body: Body = None, **options: Any) -> Model:
        """Return the answer of an operation; for the options see `calls.call_reading`."""
        return await self.send_call(calls.call(operation, body, **options))

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> "AsyncIterator[httpx.Response]":
        """Send a request and yield its response, whose content is read piece by piece."""
        async with self.api.http.stream(**call.request(self.api)) as response:
            self.has_reached = True
            if not response.is_success:
                await response.aread()
            call.check(response, self.api)
            yield response
