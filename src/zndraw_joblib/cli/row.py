"""Be one worker, a row of worker processes, or a folder's window, until a signal ends it."""

import time
import traceback
from dataclasses import replace

from zndraw_joblib.cli import client
from zndraw_joblib.cli.client import Access
from zndraw_joblib.cli.display import note
from zndraw_joblib.cli.options import LogLevel
from zndraw_joblib.cli.refusal import Misuse, Refusal
from zndraw_joblib.contract.names import is_name
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.folders import Folder, share_folder
from zndraw_joblib.worker.loading import CannotLoad, TargetBroken, load_context, load_extensions
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.retry import is_unreachable
from zndraw_joblib.worker.serving import ProcessConfig, serve, serve_processes

_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.5


def run_one(access: Access, plan: ProcessConfig) -> None:
    """Serve in this process. Raises `Refusal`."""
    try:
        extensions = load_extensions(plan.target)
        context = load_context(plan.context) if plan.context else None
    except CannotLoad as error:
        place = _place_of(error.__cause__) if isinstance(error, TargetBroken) else ""
        raise Refusal(f"{error}{place}") from error
    _wait_for_server(access)
    names = ", ".join(cls.__name__ for cls in extensions)
    note(f"Serving {names} in {plan.room} at {access.url}; Ctrl-C stops it.")
    with client.opened(access, realtime=True) as api:
        serve(api, extensions, room=plan.room, context=context, concurrency=plan.concurrency)


def run_several(access: Access, plan: ProcessConfig, count: int, log_level: LogLevel) -> int:
    """Serve in processes that are replaced when they crash; return the exit code. Raises `Refusal`."""
    _wait_for_server(access)
    note(f"{count} processes serve {plan.target} in {plan.room} at {access.url}; Ctrl-C stops them.")
    return min(1, serve_processes(replace(plan, log_level=log_level.upper()), count))


def share(access: Access, place: str, name: str, room: str) -> None:
    """Let a room read a folder. Raises `Refusal`."""
    if not is_name(name):
        raise Misuse(f"{name!r} is no name: use letters, digits, '_', '-' and '.', beginning with a letter")
    try:
        folder = Folder(place)
    except (ImportError, OSError, ValueError) as error:
        raise Refusal(f"{place!r} cannot be shared: {error}") from error
    _wait_for_server(access)
    note(f"Sharing {place} as {name!r} in {room} at {access.url}; Ctrl-C stops it.")
    with client.opened(access, realtime=True) as api, JobManager(api) as manager:
        manager.wait(lambda: share_folder(manager, folder, name=name, room=room))


def _wait_for_server(access: Access) -> None:
    """Ask the server once, so that a wrong URL or token is said here; one that is starting is waited for."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    is_told = False
    with client.opened(access) as api:
        while True:
            try:
                JobClient(RestApi(api)).workers(limit=1)
            except Exception as error:
                if not is_unreachable(error) or time.monotonic() > deadline:
                    raise
            else:
                return
            if not is_told:
                note(f"The server at {access.url} does not answer yet; trying for {_PATIENCE_SECONDS:g} s.")
                is_told = True
            time.sleep(_LOOK_SECONDS)


def _place_of(error: BaseException | None) -> str:
    """Return the file and line where an import failed."""
    if error is None or isinstance(error, SyntaxError):
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
    return f" ({frames[-1].filename}:{frames[-1].lineno})"
