"""The driver of flows: sends their requests with the client of one connection.

Made from `client.async_rest` by `make generate`; do not edit.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Body, Call, Model
from zndraw_joblib.client.connection import ApiManager, Explain, as_it_is, raise_explained
from zndraw_joblib.client.flows import Flow, Pause
from zndraw_joblib.wire.operations import Operation

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class TaskRest:
    """Sends requests to one server, and runs flows.

    It raises what the client's `raise_for_status` raises, with the server's problem as its cause, or with an
    `UnexpectedResponse`, if the response is not from a zndraw-joblib server.
    """

    def __init__(self, api: ApiManager, explain: Explain = as_it_is) -> None:
        self.api = api
        self.explain = explain
        self.has_reached = False

    def run(self, flow: Flow[T]) -> T:
        """Return the result of a flow; wait while it waits. An error is raised as `explain` returns it."""
        response: Any = None
        error: BaseException | None = None
        try:
            while True:
                effect = flow.send(response) if error is None else flow.throw(error)
                response = error = None
                try:
                    if isinstance(effect, Pause):
                        time.sleep(effect.seconds)
                    else:
                        response = self.send_call(effect)
                except BaseException as caught:
                    error = caught
        except StopIteration as end:
            result: T = end.value
            return result
        except Exception as caught:
            raise_explained(caught, self.explain)

    def send_call(self, call: Call[T]) -> T:
        """Send a request and return its result."""
        response = self.api.http.request(**call.request(self.api))
        self.has_reached = True
        return call.result(response, self.api)

    def send(self, operation: Operation[Model], body: Body = None, **options: Any) -> Model:
        """Return the answer of an operation; for the options see `calls.call_reading`."""
        return self.send_call(calls.call(operation, body, **options))

    @contextmanager
    def stream(self, call: Call[Any]) -> "Iterator[httpx.Response]":
        """Send a request and yield its response, whose content is read piece by piece."""
        with self.api.http.stream(**call.request(self.api)) as response:
            self.has_reached = True
            if not response.is_success:
                response.read()
            call.check(response, self.api)
            yield response
