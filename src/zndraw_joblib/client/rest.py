"""The synchronous driver: sends the requests of flows with the client of an `ApiManager`."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import httpx

from zndraw_joblib.client import calls
from zndraw_joblib.client.access import Explain, as_it_is, raise_explained
from zndraw_joblib.client.api import ApiManager
from zndraw_joblib.client.calls import Body, Call, Model
from zndraw_joblib.client.flows import Flow, drive
from zndraw_joblib.wire import history, messages, progress
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operations import Operation

T = TypeVar("T")


@dataclass(slots=True)
class Download:
    """A file for a result. `etag` is that of the result whose first bytes the file has."""

    file: IO[bytes]
    etag: str = ""


class TaskRest:
    """The operations of one server. All timeouts are seconds, None for those of the host's client.

    Each method raises what the host's `raise_for_status` raises, with the server's problem as its cause, or
    with an `UnexpectedResponse`, if the response is not from a zndraw-joblib server.
    """

    def __init__(self, api: ApiManager, explain: Explain = as_it_is) -> None:
        self.api = api
        self.explain = explain
        self.has_reached = False

    def run(self, flow: Flow[T]) -> T:
        """Return the result of a flow; block while it waits. An error is raised as `explain` returns it."""
        try:
            return drive(flow, self.send_call)
        except Exception as error:
            raise_explained(error, self.explain)

    def send_call(self, call: Call[T]) -> T:
        """Send a request and return its result."""
        response = self.api.http.request(**call.request(self.api))
        self.has_reached = True
        return call.result(response, self.api)

    @contextmanager
    def stream(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """Send a request and yield its response, whose content is read piece by piece."""
        with self.api.http.stream(**call.request(self.api)) as response:
            self.has_reached = True
            if not response.is_success:
                response.read()
            call.check(response, self.api)
            yield response

    def request(self, operation: Operation[Any], body: Body = None, **options: Any) -> httpx.Response:
        """Return the response to a request, which is a success; for the options see `calls.call_reading`."""
        return self.send_call(calls.call_reading(operation, _whole, body, **options))

    def send(self, operation: Operation[Model], body: Body = None, **options: Any) -> Model:
        """Return the answer of an operation; for the options see `calls.call_reading`."""
        return self.send_call(calls.call(operation, body, **options))

    def get_task(self, task_id: str, wait: int = 0) -> tuple[messages.TaskResponse, int]:
        """Return a task and how many seconds the server agreed to wait for its end."""
        return self.send_call(calls.get_task(task_id, wait))

    def task_events(self, task_id: str, after: int | None, wait: int = 0) -> tuple[history.TaskEvents, int]:
        """Return the events of a task after a position, and how many seconds the server agreed to wait."""
        return self.send_call(calls.task_events(task_id, after, wait))

    def submit(
        self, room_id: str, full_name: str, payload: Mapping[str, Any], key: str | None = None, **options: Any
    ) -> messages.TaskResponse:
        """Submit a task. Raises ValueError for invalid `options`, and for a payload that is not JSON."""
        return self.send_call(calls.submit(room_id, full_name, payload, key, **options))

    def report_task(
        self, task_id: str, update: messages.TaskUpdateRequest, key: str | None = None
    ) -> messages.TaskResponse:
        """Report a task's new status."""
        return self.send_call(calls.update_task(task_id, update, key))

    def act_on_task(
        self,
        action: Operation[messages.TaskResponse],
        task_id: str,
        request: messages.TaskActionRequest | None = None,
        timeout: float | None = None,
        key: str | None = None,
    ) -> messages.TaskResponse:
        """Release, retry or fail a task."""
        return self.send_call(calls.act_on_task(action, task_id, request, timeout, key))

    def load_task_result(self, task_id: str, download: Download) -> progress.StoredResult:
        """Load the result of a task into a file; go on if it has the first bytes of the same result."""
        file = download.file
        start = file.seek(0, os.SEEK_END)
        headers = {"Accept-Encoding": "identity"}
        if start and download.etag:
            headers |= {"Range": f"bytes={start}-", "If-Range": download.etag}
        call = calls.call_reading(ops.READ_TASK_RESULT, _whole, headers=headers, task_id=task_id)
        with self.stream(call) as response:
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                file.truncate(0)
                file.seek(0)
                download.etag = response.headers.get("ETag", "")
            for piece in response.iter_bytes():
                file.write(piece)
        return calls.stored_of(response, file.tell())


def _whole(response: httpx.Response) -> httpx.Response:
    return response
