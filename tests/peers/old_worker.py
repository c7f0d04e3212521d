"""A worker that uses `zndraw-joblib` 0.1.7 as documented, in an environment of its own.

Its argument is a JSON object of options. Each line of standard input is a command, in JSON; each line of
standard output is a result or an event.
"""

import json
import sys
import threading
from importlib.metadata import version
from typing import Any, ClassVar

import httpx
import pydantic
import socketio
from zndraw_socketio import wrap

import zndraw_joblib
from zndraw_joblib import Category, ClaimedTask, Extension, JobManager, Provider

_writing = threading.Lock()


def write(**what: Any) -> None:
    """Write one line."""
    with _writing:
        print(json.dumps(what, default=str), flush=True)


class Sum(Extension):
    """Adds numbers."""

    category: ClassVar[Category] = Category.ANALYSIS
    numbers: list[float] = pydantic.Field(default_factory=list)

    def run(self, vis: Any, **kwargs: Any) -> float:
        """Return the sum."""
        return sum(self.numbers)


class Break(Extension):
    """Fails."""

    category: ClassVar[Category] = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Fail."""
        raise RuntimeError("it broke")


class Wait(Extension):
    """Runs until the process ends."""

    category: ClassVar[Category] = Category.SELECTION

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Never return."""
        write(event="waits")
        threading.Event().wait()


class Words(Provider):
    """Returns the path of the request, and the handler, as JSON."""

    category: ClassVar[str] = "words"
    path: str = "/"

    def read(self, handler: Any) -> Any:
        """Return the handler and the path in a list, or fail."""
        write(event="read", path=self.path)
        if self.path == "/broken":
            raise LookupError("no such path")
        return [handler, self.path]


class Raw(Provider):
    """Returns the same as bytes."""

    category: ClassVar[str] = "raws"
    content_type: ClassVar[str] = "application/x-msgpack"
    path: str = "/"

    def read(self, handler: Any) -> bytes:
        """Return the handler and the path."""
        write(event="read", path=self.path)
        return f"{handler} {self.path}".encode()


PROVIDERS = {"Words": Words, "Raw": Raw}
# The same name and category, another schema.
OtherSum = pydantic.create_model("Sum", __base__=Sum, numbers=(str, "1+2"))
EXTENSIONS = {"Sum": Sum, "Break": Break, "Wait": Wait, "OtherSum": OtherSum}


class Api:
    """The documented `ApiManager`; it writes an event for every response."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self.http = httpx.Client(
            trust_env=False, timeout=30, event_hooks={"response": [self._write_response]}
        )

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._url

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity."""
        return {"Authorization": f"Bearer {self._token}"}

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise the errors that the package's own loops expect."""
        if response.is_success:
            return
        kinds = {401: PermissionError, 403: PermissionError, 404: KeyError, 409: ValueError, 422: ValueError}
        raise kinds.get(response.status_code, RuntimeError)(response.json()["type"])

    def _write_response(self, response: httpx.Response) -> None:
        response.read()
        request = response.request
        body = response.json() if response.content else None
        is_raw = request.url.path.endswith("/results")
        write(
            event=f"{request.method} {request.url.path}",
            sent=None if is_raw else json.loads(request.content or "null"),
            status=response.status_code,
            body=body,
        )


class Commands:
    """The commands; each method implements the command of its name."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._tasks: dict[str, ClaimedTask] = {}

    def about(self) -> dict[str, Any]:
        """Return the version and the location of the package."""
        return {"version": version("zndraw-joblib"), "file": zndraw_joblib.__file__}

    def register(self, name: str, **where: Any) -> str:
        """Register an extension; return the worker's id."""
        self._manager.register(EXTENSIONS[name], **where)
        return str(self._manager.worker_id)

    def register_provider(self, kind: str, name: str, handler: str, **where: Any) -> str:
        """Register a provider; return its id."""
        return str(self._manager.register_provider(PROVIDERS[kind], name=name, handler=handler, **where))

    def unregister_provider(self, full_name: str) -> None:
        """Unregister a provider."""
        self._manager.unregister_provider(full_name)

    def handlers(self) -> dict[str, str]:
        """Return the handlers."""
        return dict(self._manager.handlers)

    def create_worker(self) -> str:
        """Create a worker without jobs; return its id."""
        return str(self._manager.create_worker())

    def submit(self, name: str, payload: dict[str, Any], **where: Any) -> str:
        """Submit a task; return its id."""
        return self._manager.submit(EXTENSIONS[name](**payload), **where)

    def claim(self) -> dict[str, Any] | None:
        """Claim a task; return it, with the extension's fields."""
        task = self._manager.claim()
        return None if task is None else self._kept(task)

    def listen(self) -> dict[str, Any]:
        """Return the first task that `listen` yields."""
        return self._kept(next(self._manager.listen(polling_interval=0.05)))

    def report(self, how: str, task_id: str, **details: str) -> None:
        """Call `start`, `complete`, `fail` or `cancel` with a claimed task."""
        getattr(self._manager, how)(self._tasks[task_id], **details)

    def fail_by_id(self, task_id: str, error: str) -> None:
        """Fail a task by its id."""
        self._manager.fail_by_id(task_id, error)  # type: ignore[attr-defined]

    def heartbeat(self) -> None:
        """Send one heartbeat."""
        self._manager.heartbeat()

    def _kept(self, task: ClaimedTask) -> dict[str, Any]:
        self._tasks[task.task_id] = task
        return {
            "id": task.task_id,
            "job_name": task.job_name,
            "room_id": task.room_id,
            "fields": task.extension.model_dump(),
        }


def execute(task: ClaimedTask) -> None:
    """Run a claimed task and write its value."""
    value = task.extension.run(None)
    write(event="ran", task_id=task.task_id, job_name=task.job_name, room_id=task.room_id, value=value)


def run_commands(manager: JobManager) -> None:
    """Run the commands from standard input, and disconnect at its end."""
    commands = Commands(manager)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            write(answer=getattr(commands, command.pop("do"))(**command))
        except Exception as error:
            write(raised=type(error).__name__, text=str(error))
    manager.disconnect()


def connected(url: str, token: str, transports: list[str]) -> Any:
    """Return a connected Socket.IO client, wrapped as the package needs it."""
    socket = socketio.Client(reconnection_delay=0.5, reconnection_delay_max=0.5, request_timeout=30)
    socket.connect(url, auth={"token": token}, transports=transports, wait_timeout=30)
    return wrap(socket)


def main(url: str, token: str, transports: list[str] | None, serves: bool, **options: Any) -> None:
    """Work until standard input ends or a signal comes."""
    tsio = connected(url, token, transports) if transports else None
    with JobManager(Api(url, token), tsio, execute=execute if serves else None, **options) as manager:
        threading.Thread(target=run_commands, args=[manager], daemon=True).start()
        manager.wait()
    if tsio is not None:
        tsio.disconnect()
    write(event="left")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
