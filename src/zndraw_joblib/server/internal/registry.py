"""The internal jobs that a process knows, and the executor that runs their tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from zndraw_joblib.server.internal.worker_tokens import with_token
from zndraw_joblib.server.ports import InternalTask


class InternalExecutor(Protocol):
    """Runs internal tasks in the process that gets them from the broker, and reports on them.

    An executor with a true attribute `exclusive_start` starts a task once, however often it is called with
    it. Then the server sends a task that was not started to the broker again. An executor that has a fifth
    parameter `token` gets a token of `JobLib(worker_token=…)`.
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
