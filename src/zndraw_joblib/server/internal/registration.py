"""Register internal jobs in the database, and their tasks with a broker."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import ValidationError
from taskiq import AsyncBroker, TaskiqEvents

from zndraw_joblib.contract.extensions import category_of, check_job
from zndraw_joblib.contract.messages import JobRegisterRequest
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.server.internal.registry import InternalExecutor, InternalRegistry, OrderedTask
from zndraw_joblib.server.internal.worker_tokens import with_token
from zndraw_joblib.server.service import internal


def register_internal_tasks(
    broker: AsyncBroker, extensions: Sequence[type[Any]], executor: InternalExecutor
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
    for event, method in ((TaskiqEvents.WORKER_STARTUP, "start"), (TaskiqEvents.WORKER_SHUTDOWN, "stop")):
        handler = getattr(executor, method, None)
        if handler is not None and handler not in broker.event_handlers[event]:
            broker.add_event_handler(event, handler)
    return InternalRegistry(tasks, names, executor, getattr(broker, "free", None))


async def offer_internal_jobs(
    write: Callable[..., Awaitable[Any]],
    broker: AsyncBroker,
    extensions: Sequence[type[Any]],
    executor: InternalExecutor,
) -> InternalRegistry:
    """Create or update the extensions' jobs in the database and register their tasks with the broker.

    Raises TypeError for what is no job, and ValueError for an invalid name.
    """
    registry = register_internal_tasks(broker, extensions, executor)
    await write(internal.register, [offer_of(cls) for cls in registry.extensions.values()])
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


def offer_of(cls: type[Any]) -> internal.InternalJob:
    """Return an extension as an internal job. Raises TypeError, ValueError where it cannot be one."""
    policy = getattr(cls, "policy", None)
    found = policy if isinstance(policy, JobPolicy) else JobPolicy()
    offer = internal.InternalJob(_name_of(cls), cls.model_json_schema(), found)
    internal.check(offer)
    return offer
