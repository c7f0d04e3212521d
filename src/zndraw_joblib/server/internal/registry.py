"""Internal jobs: which extensions run inside the server, by which broker and which executor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI
from pydantic import ValidationError
from taskiq import AsyncBroker, TaskiqEvents

from zndraw_joblib.contract.messages import JobRegisterRequest
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.server.ports import InternalTask, SessionMaker
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import internal
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import Database, SessionDatabase


class InternalExecutor(Protocol):
    """Runs internal tasks, in the process that the broker gives them to, and reports on them.

    One with an attribute `exclusive_start` that is true starts a task once, however often it is called with it:
    then a task that it does not start is handed to the broker again.
    """

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str, /
    ) -> object:
        """Run one task to its end."""


@dataclass(frozen=True)
class InternalRegistry:
    """The internal jobs that a process knows, by their full names ``@internal:{category}:{Name}``.

    `tasks` are handles of the broker, whose ``kiq(task_id=…, room_id=…, payload=…)`` queues a call. With
    `free`, no more are handed over than it returns.
    """

    tasks: Mapping[str, InternalTask]
    extensions: Mapping[str, type[Any]] = field(default_factory=dict)
    executor: InternalExecutor | None = None
    free: Callable[[], int] | None = None


def register_internal_tasks(
    broker: AsyncBroker, extensions: Sequence[type[Any]], executor: InternalExecutor
) -> InternalRegistry:
    """Register a task for each extension with a broker, under the job's full name.

    For the processes of workers. An executor with `start` and `stop` is told when such a process begins and
    ends. Raises ValueError for an extension that cannot be a job.
    """
    names = {str(_name_of(cls)): cls for cls in extensions}
    tasks = {name: broker.register_task(_call(cls, executor), name) for name, cls in names.items()}
    for event, method in ((TaskiqEvents.WORKER_STARTUP, "start"), (TaskiqEvents.WORKER_SHUTDOWN, "stop")):
        handler = getattr(executor, method, None)
        if handler is not None and handler not in broker.event_handlers[event]:
            broker.add_event_handler(event, handler)
    return InternalRegistry(tasks, names, executor, getattr(broker, "free", None))


async def register_internal_jobs(
    app: FastAPI,
    broker: AsyncBroker,
    extensions: Sequence[type[Any]],
    executor: InternalExecutor,
    session_factory: SessionMaker | Database,
) -> InternalRegistry:
    """Offer extensions as internal jobs: make or renew them in the database, register them with the broker.

    From then on the app takes their tasks, whether it was mounted before or will be after. Any number of
    replicas may do so at once; the newest code's schema and policy (a `JobPolicy` in the class's `policy`)
    hold. Raises ValueError for an extension that cannot be a job.
    """
    registry = register_internal_tasks(broker, extensions, executor)
    offers = [offer_of(cls) for cls in registry.extensions.values()]
    database = session_factory if isinstance(session_factory, Database) else SessionDatabase(session_factory)
    await schema.prepare(database)
    runtime = getattr(app.state, "joblib", None)
    write = runtime.write if isinstance(runtime, Runtime) else database.write
    await write(internal.register, offers=offers)
    app.state.internal_registry = registry
    if isinstance(runtime, Runtime):
        runtime.dispatcher.poke()
    return registry


def _call(cls: type[Any], executor: InternalExecutor) -> Callable[..., Any]:
    async def run(task_id: str, room_id: str, payload: dict[str, Any]) -> None:
        await executor(cls, payload, room_id, task_id)

    return run


def _name_of(cls: type[Any]) -> JobName:
    category: Any = getattr(cls, "category", None)
    try:
        named = JobRegisterRequest(category=getattr(category, "value", category), name=cls.__name__)
    except ValidationError as error:
        raise ValueError(f"{cls.__name__} cannot be an internal job: {error.errors()[0]['msg']}") from error
    return JobName(INTERNAL, named.category, named.name)


def offer_of(cls: type[Any]) -> internal.InternalJob:
    """Return an extension as an internal job. Raises ValueError where it cannot be one."""
    policy = getattr(cls, "policy", None)
    found = policy if isinstance(policy, JobPolicy) else JobPolicy()
    offer = internal.InternalJob(_name_of(cls), cls.model_json_schema(), found)
    internal.check(offer)
    return offer
