"""Internal jobs that a process knows, the executor of their tasks, and the tokens that executors get."""

import importlib
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.jobs.extensions import category_of, check_job
from zndraw_joblib.jobs.loading import extensions_of, load_extensions
from zndraw_joblib.server.process.ports import InternalTask
from zndraw_joblib.server.queue import rules_internal
from zndraw_joblib.wire.messages import JobRegisterRequest
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.policy import JobPolicy

if TYPE_CHECKING:
    from taskiq import AsyncBroker

logger = logging.getLogger(__name__)

WorkerToken = Callable[[], Awaitable[str]]
# The class, the payload, the room and the task.
_ARGUMENTS_WITHOUT_TOKEN = 4
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TokenRequest(NamedTuple):
    """What a token is for: a task of an internal job, or without a task a request to an internal provider.

    `name` is the full name of the job or provider, and `user_id` the submitter of the task.
    """

    name: str
    room_id: str
    task_id: UUID | None = None
    attempt: int | None = None
    user_id: str | None = None


TaskToken = Callable[[TokenRequest], Awaitable[str] | str]
# Of the token of a task and its attempt, and of the token of a request to a provider, with its hash.
Issue = Callable[[UUID, int], Awaitable[str]]
IssueForRequest = Callable[[UUID, str], Awaitable[str]]


class WorkerTokens:
    """The tokens of executors: of the host's `task_token` or `worker_token`, else those of the queue.

    `issue` returns the token of a claim, and `issue_for_request` that of a request to an internal provider;
    see `rules_task_tokens`.
    """

    def __init__(
        self,
        function: WorkerToken | None = None,
        task_token: TaskToken | None = None,
        issue: Issue | None = None,
        issue_for_request: IssueForRequest | None = None,
    ) -> None:
        self._function, self._task_token = function, task_token
        self._issue, self._issue_for_request = issue, issue_for_request
        self._has_warned = False

    async def of_task(self, request: TokenRequest) -> str | None:
        """Return a token for an executor of a task."""
        if self._task_token is not None:
            return await _returned("task_token", self._task_token(request))
        if self._function is None and self._issue is not None and request.task_id is not None:
            return await self._issue(request.task_id, request.attempt or 0)
        return await self.mint()

    async def of_request(self, name: JobName, provider_id: UUID, request_hash: str) -> str | None:
        """Return a token for an executor of a request to a provider."""
        if self._task_token is not None:
            return await _returned("task_token", self._task_token(TokenRequest(str(name), name.room_id)))
        if self._function is None and self._issue_for_request is not None:
            return await self._issue_for_request(provider_id, request_hash)
        return await self.mint()

    async def mint(self) -> str | None:
        """Return a new token; None without a function. Raises TypeError if the function returns no text."""
        if self._function is None:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "An executor takes a token, but JobLib has neither task_token nor worker_token: it gets "
                    "None. Pass JobLib(task_token=function), which gets a TokenRequest and returns a token"
                )
            return None
        return await _returned("worker_token", self._function())


async def _returned(name: str, token: Any) -> str:
    if inspect.isawaitable(token):
        token = await token
    if not isinstance(token, str) or not token:
        # Not its value, which may be a secret.
        raise TypeError(f"{name} returned {type(token).__name__}: it must return a text, the token")
    return token


def with_token(executor: Any) -> Callable[..., Awaitable[object]] | None:
    """Return a function that calls an executor with a token as fifth argument; None if it takes none.

    An executor takes one if it has a parameter `token`, or a fifth one without a default value.
    """
    try:
        parameters = inspect.signature(executor).parameters
    except (TypeError, ValueError):
        return None
    positional = [parameter for parameter in parameters.values() if parameter.kind in _POSITIONAL]
    others = positional[_ARGUMENTS_WITHOUT_TOKEN:]
    if others and (others[0].name == "token" or others[0].default is inspect.Parameter.empty):
        call: Callable[..., Awaitable[object]] = executor
        return call
    if "token" in parameters and parameters["token"] not in positional[:_ARGUMENTS_WITHOUT_TOKEN]:
        return lambda *args: executor(*args[:-1], token=args[-1])
    return None


class InternalExecutor(Protocol):
    """Runs internal tasks in the process that gets them from the broker, and reports on them.

    An executor with a true attribute `exclusive_start` starts a task once, however often it is called with
    it. Then the server sends a task that was not started to the broker again. An executor that has a fifth
    parameter `token`, or a keyword of this name, gets a token: of `JobLib(task_token=…)` or
    `JobLib(worker_token=…)`, else one with the rights of this task alone.
    """

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str, /
    ) -> object:
        """Run one task to its end."""


@dataclass(frozen=True)
class OrderedTask:
    """The handle of a task whose broker delivers messages in the order of their label `place`."""

    task: Any

    async def kiq(self, **call: Any) -> object:
        """Send one call with the lowest `place`, before all others."""
        return await self.kiq_at(0, **call)

    async def kiq_at(self, place: float, **call: Any) -> object:
        """Send one call with the label `place`: the lowest is taken first."""
        return await self.task.kicker().with_labels(place=place).kiq(**call)


@dataclass(frozen=True)
class InternalRegistry:
    """The internal jobs that a process knows, by their full names ``@internal:{category}:{Name}``.

    `tasks` are handles of the broker, whose ``kiq(task_id=…, room_id=…, payload=…)`` sends one call. With
    `free`, the dispatcher sends no more tasks than it returns.
    """

    tasks: Mapping[str, InternalTask]
    extensions: Mapping[str, type[Any]] = field(default_factory=dict)
    executor: InternalExecutor | None = None
    free: Callable[[], int] | None = None

    @property
    def exclusive_start(self) -> bool:
        """Whether the executor starts a task once, however many messages name it."""
        return bool(getattr(self.executor, "exclusive_start", False))

    @property
    def takes_token(self) -> bool:
        """Whether the executor is called with a token."""
        return self.executor is not None and with_token(self.executor) is not None


# Register internal jobs in the database, and their tasks with a broker.


def register_internal_tasks(
    broker: "AsyncBroker", extensions: Sequence[type[Any]], executor: InternalExecutor
) -> InternalRegistry:
    """Register a task for each extension with a broker, under the job's full name.

    Call it in worker processes. The broker calls the executor's methods `start` and `stop`, if it has them,
    when such a process starts and stops. Raises TypeError for what is no job, and ValueError for an invalid
    name.
    """
    names = {str(_name_of(cls)): cls for cls in extensions}
    tasks: dict[str, Any] = {
        name: broker.register_task(_call(cls, executor), name) for name, cls in names.items()
    }
    if getattr(broker, "orders_tasks", False):
        tasks = {name: OrderedTask(task) for name, task in tasks.items()}
    call_with_processes(broker, executor)
    return InternalRegistry(tasks, names, executor, getattr(broker, "free", None))


def call_with_processes(broker: "AsyncBroker", executor: Any) -> None:
    """Let a broker call an executor's methods `start` and `stop`, if it has them, in worker processes."""
    from taskiq import TaskiqEvents  # noqa: PLC0415 - few servers have internal jobs, and it loads much

    for event, method in ((TaskiqEvents.WORKER_STARTUP, "start"), (TaskiqEvents.WORKER_SHUTDOWN, "stop")):
        handler = getattr(executor, method, None)
        if handler is not None and handler not in broker.event_handlers[event]:
            broker.add_event_handler(event, handler)


async def offer_internal_jobs(
    write: Callable[..., Awaitable[Any]],
    broker: "AsyncBroker",
    extensions: Sequence[type[Any]],
    executor: InternalExecutor,
) -> InternalRegistry:
    """Create or update the extensions' jobs in the database and register their tasks with the broker.

    Raises TypeError for what is no job, and ValueError for an invalid name.
    """
    registry = register_internal_tasks(broker, extensions, executor)
    await write(rules_internal.register, [offer_of(cls) for cls in registry.extensions.values()])
    return registry


def _call(cls: type[Any], executor: InternalExecutor) -> Callable[..., Any]:
    if (call := with_token(executor)) is not None:

        async def run_with_token(
            task_id: str, room_id: str, payload: dict[str, Any], token: str | None = None
        ) -> None:
            await call(cls, payload, room_id, task_id, token)

        return run_with_token

    async def run(task_id: str, room_id: str, payload: dict[str, Any]) -> None:
        await executor(cls, payload, room_id, task_id)

    return run


def _name_of(cls: type[Any]) -> JobName:
    check_job(cls)
    try:
        named = JobRegisterRequest(category=category_of(cls), name=cls.__name__)
    except ValidationError as error:
        raise ValueError(f"{cls.__name__} cannot be an internal job: {error.errors()[0]['msg']}") from error
    return JobName(INTERNAL, named.category, named.name)


def offer_of(cls: type[Any]) -> rules_internal.InternalJob:
    """Return an extension as an internal job. Raises TypeError, ValueError where it cannot be one."""
    own = getattr(cls, "policy", None)
    policy = own if isinstance(own, JobPolicy) else JobPolicy()
    offer = rules_internal.InternalJob(_name_of(cls), cls.model_json_schema(), policy)
    rules_internal.check(offer)
    return offer


# Load the extensions of internal jobs by name.


class CannotLoadJobs(ValueError):
    """An entry of `internal_extensions` cannot be loaded. The text names the entry and the reason."""


def load_listed(jobs: Sequence[Any]) -> list[type[Any]]:
    """Return the jobs of ``JobLib(jobs=…)``: jobs, modules with jobs, and names of modules or ``.py`` files.

    Raises TypeError, ValueError or `CannotLoad` for what is no job or cannot be an internal one.
    """
    if isinstance(jobs, str | type) or not isinstance(jobs, Sequence):
        raise TypeError(f"JobLib(jobs={jobs!r:.100}): pass a list, as jobs=[area]")
    classes: list[type[Any]] = []
    for job in jobs:
        if isinstance(job, str):
            classes += load_extensions(job)
        elif isinstance(job, ModuleType):
            classes += extensions_of(job)
        else:
            check_job(job)
            classes.append(job)
    for cls in classes:
        offer_of(cls)
    return list(dict.fromkeys(classes))


def load(entries: Sequence[str]) -> list[type[Any]]:
    """Return the jobs of the entries ``module:Class`` or ``module:function``; raise `CannotLoadJobs`.

    The modules may be in the working directory.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [_load(entry) for entry in entries]


def _load(entry: str) -> type[Any]:
    module, _, name = entry.partition(":")
    if not module or not name:
        raise CannotLoadJobs(f"internal_extensions: {entry!r} does not have the form module:Class")
    try:
        value = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise CannotLoadJobs(f"internal_extensions: {entry!r}: there is no module {module!r}") from error
        raise CannotLoadJobs(f"internal_extensions: {entry!r} cannot be imported: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoadJobs(f"internal_extensions: {entry!r} cannot be imported: {reason}") from error
    if value is None:
        raise CannotLoadJobs(f"internal_extensions: {entry!r}: the module {module!r} has no {name!r}")
    try:
        check_job(value)
    except TypeError as error:
        raise CannotLoadJobs(f"internal_extensions: {entry!r}: {error}") from error
    return value  # type: ignore[no-any-return]
