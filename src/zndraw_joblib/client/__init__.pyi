"""Public names; `make generate` writes this file from the table of `zndraw_joblib.client`."""

from typing import Any

from zndraw_joblib.client.async_queue import AsyncQueue as AsyncQueue
from zndraw_joblib.client.async_queue import AsyncTaskHandle as AsyncTaskHandle
from zndraw_joblib.client.connection import ServerUnreachable as ServerUnreachable
from zndraw_joblib.client.flows import AmbiguousJob as AmbiguousJob
from zndraw_joblib.client.flows import TaskCancelled as TaskCancelled
from zndraw_joblib.client.flows import TaskFailed as TaskFailed
from zndraw_joblib.client.queue import Queue as Queue
from zndraw_joblib.client.queue import TaskHandle as TaskHandle
from zndraw_joblib.client.submits import NewTask as NewTask
from zndraw_joblib.client.watching import TaskEvent as TaskEvent

_MODULE_OF: dict[str, str]
__all__: list[str]

def __getattr__(name: str) -> Any: ...
