"""Checks of what a host passes to `JobLib`, when it mounts the queue: each error says what to do."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

from zndraw_joblib.server.http.access import Guard, QueueState
from zndraw_joblib.server.http.identity import check_identity_type
from zndraw_joblib.server.http.openapi import namespace_of, operation_id
from zndraw_joblib.server.http.requests import takes_parameter
from zndraw_joblib.server.realtime.socketio_internals import is_synchronous, redis_channel

_MAX_CONCURRENCY = 1000
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")


def check_identity(identity: Callable[..., Any]) -> None:
    """Raise TypeError unless it may be a dependency whose value has `id` and `is_superuser`."""
    if not callable(identity):
        raise TypeError(
            f"identity is {identity!r:.100}, not a function. Pass your FastAPI dependency that returns the "
            "current user, such as identity=current_user, without calling it"
        )
    check_identity_type(identity)


def checked_worker_token(function: Any) -> Any:
    """Return `worker_token`. Raises TypeError for what is no function without arguments."""
    if function is None:
        return None
    if not callable(function):
        raise TypeError(
            f"worker_token is a {type(function).__name__}, not a function. Pass an async function that "
            "returns a new token for internal executors"
        )
    required = [
        argument.name
        for argument in inspect.signature(function).parameters.values()
        if argument.default is argument.empty
        and argument.kind not in {argument.VAR_POSITIONAL, argument.VAR_KEYWORD}
    ]
    if required:
        raise TypeError(f"worker_token is called without arguments, but requires {', '.join(required)}")
    return function


def checked_task_token(function: Any) -> Any:
    """Return `task_token`. Raises TypeError for what is no function."""
    if function is not None and not callable(function):
        raise TypeError(
            f"task_token is a {type(function).__name__}, not a function. Pass a function that takes a "
            "TokenRequest and returns a token"
        )
    return function


def checked_jobs(classes: Sequence[type[Any]], concurrency: int) -> Callable[..., Any] | None:
    """Return the function that offers the jobs of ``JobLib(jobs=…)``, as `InternalJobs`; None without jobs.

    Raises ValueError for an invalid `concurrency`.
    """
    if not 1 <= concurrency <= _MAX_CONCURRENCY:
        raise ValueError(f"JobLib(concurrency={concurrency}): it must be 1 to {_MAX_CONCURRENCY:,}")
    if not classes:
        return None

    def offer(runtime: Any, wake_dispatcher: Callable[[], None]) -> Any:
        from zndraw_joblib.server.internal.setup import app_jobs  # noqa: PLC0415 - it loads taskiq

        return app_jobs(classes, concurrency, runtime, wake_dispatcher)

    return offer


def check_guards(**guards: Guard | None) -> None:
    """Raise TypeError for a guard that takes no `room_id`."""
    for name, guard in guards.items():
        if guard is None:
            continue
        if not callable(guard):
            raise TypeError(f"{name} is {guard!r:.100}, not a function that takes room_id and returns it")
        if not takes_parameter(guard, "room_id"):
            raise TypeError(
                f"{name}: {getattr(guard, '__qualname__', guard)!r} does not take the parameter room_id, so "
                "it would admit every room. Declare it as 'room_id: str'"
            )


def check_tsio(tsio: Any) -> None:
    """Raise TypeError for a `tsio` that cannot send events."""
    if tsio is None:
        return
    if is_synchronous(tsio):
        raise TypeError("tsio is a synchronous socketio.Server. Pass socketio.AsyncServer(async_mode='asgi')")
    if inspect.isclass(tsio) or not callable(getattr(tsio, "emit", None)):
        raise TypeError(
            f"tsio is {tsio!r:.100}, which cannot emit. Pass a socketio.AsyncServer, or an object with "
            "'async def emit(model, room=...)'; to let clients join rooms, call register_socketio_handlers"
        )


def check_app(app: Any) -> None:
    """Raise an error for an app that has started already, and for an object that is no app."""
    if not isinstance(app, FastAPI):
        raise TypeError(f"mount takes the FastAPI app, not {type(app).__name__}. Call it before you wrap it")
    if app.middleware_stack is not None:
        raise RuntimeError(
            "The app has started: its middleware is built. Call JobLib(...).mount(app) where you create the "
            "app, before its lifespan and its first request"
        )


def checked_prefix(prefix: str) -> str:
    """Return a prefix. Raises ValueError unless it is empty, or a path without a slash at its end."""
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"prefix={prefix!r} is no path: pass one that begins with a slash and does not end with one, as "
            "'/queue-a', or none"
        )
    return prefix


def add_queue(app: FastAPI, queue: QueueState, sio: Any) -> bool:
    """Add a queue to those of an app. Return whether it is the first; that one is `app.state.joblib`.

    Raises RuntimeError if another one has the same prefix, ids of operations, channel in Redis, or sockets.
    """
    queues: list[QueueState] = getattr(app.state, "joblib_queues", [])
    app.state.joblib_queues = queues
    redis = _redis_channel(queue)
    for other in queues:
        if other.prefix == queue.prefix:
            raise RuntimeError(
                f"The app has a queue with the prefix {queue.prefix!r} already. Mount one queue, or create "
                "others with JobLib(prefix='/another')"
            )
        if _example_id(other) == _example_id(queue):
            raise RuntimeError(
                f"The prefixes {other.prefix!r} and {queue.prefix!r} give two queues the same operation ids, "
                f"as {_example_id(queue)!r}. Choose a prefix with another letter or digit"
            )
        if redis is not None and redis == _redis_channel(other):
            raise RuntimeError(
                f"The queues {other.prefix!r} and {queue.prefix!r} have the same redis_url and redis_prefix "
                f"({redis[1]!r}), so each would get the other's messages. Set another redis_prefix"
            )
    check_sockets(app, queue, sio)
    queues.append(queue)
    if len(queues) == 1:
        app.state.joblib = queue
    return len(queues) == 1


def check_sockets(app: FastAPI, queue: QueueState, sio: Any) -> None:
    """Raise RuntimeError if events of a queue that go through `sio` would reach the rooms of another one."""
    if sio is None:
        return
    channel = redis_channel(sio)
    for other in app.state.joblib_queues:
        theirs = other.publisher.rooms
        if other is queue or theirs is None:
            continue
        pair = f"{other.prefix!r} and {queue.prefix!r}"
        if theirs is sio:
            raise RuntimeError(
                f"The queues {pair} have one Socket.IO server, so each would send its events to the other's "
                "rooms. Create a socketio.AsyncServer for each"
            )
        if channel is not None and channel == redis_channel(theirs):
            raise RuntimeError(
                f"The Socket.IO servers of the queues {pair} have one channel in Redis ({channel[1]!r}), so "
                "each would get the other's events. Set another: AsyncRedisManager(url, channel='queue-b')"
            )


def _example_id(queue: QueueState) -> str:
    return operation_id("submit_task", namespace_of(queue.prefix, is_host=True))


def _redis_channel(queue: QueueState) -> tuple[str, str] | None:
    settings = queue.runtime.settings
    return None if settings.redis_url is None else (str(settings.redis_url), settings.redis_prefix)
