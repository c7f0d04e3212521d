"""Internal providers: their registration, and their requests, which a broker passes to its processes."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.jobs.extensions import category_of
from zndraw_joblib.server.background.host_functions import open_session
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.internal.registry import WorkerTokens, call_with_processes, with_token
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.server.queue.rules_transitions import check_size
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import ProviderNotConnected, ServiceUnavailable
from zndraw_joblib.wire.providers import ProviderRegisterRequest

if TYPE_CHECKING:
    from taskiq import AsyncBroker

logger = logging.getLogger(__name__)

_SEND_SECONDS = 20.0
_RETRY_AFTER = {"Retry-After": "2"}


class InternalProviderExecutor(Protocol):
    """Answers requests to internal providers in the process that gets them from the broker.

    It reads ``provider_cls.model_validate_json(params_json)`` and uploads the result, with `token`, to
    ``POST /v1/joblib/providers/{provider_id}/results`` with the header ``X-Request-Hash: {request_id}``.
    `token` is of `JobLib(task_token=…)` or `JobLib(worker_token=…)`, else one that permits only this upload.
    It may be a keyword of this name too; an executor without it gets none.
    """

    async def __call__(
        self, provider_cls: type[Any], params_json: str, provider_id: str, request_id: str, token: str, /
    ) -> object:
        """Read and upload the result of one request, or its error."""


class ProviderTask(Protocol):
    """A task of an internal provider that is registered with a broker."""

    async def kiq(self, *, params_json: str, provider_id: str, request_id: str, token: str | None) -> object:
        """Send one request to the broker."""


@dataclass(frozen=True)
class InternalProviderRegistry:
    """The internal providers that a process knows, by their full names ``@internal:{category}:{Name}``."""

    tasks: Mapping[str, ProviderTask]
    providers: Mapping[str, type[Any]] = field(default_factory=dict)
    executor: InternalProviderExecutor | None = None


class InternalRequests:
    """Sends requests to internal providers to their broker."""

    def __init__(self, registry: Callable[[], Any], tokens: WorkerTokens) -> None:
        self._registry, self._tokens = registry, tokens

    def find(self, name: JobName) -> ProviderTask:
        """Return the task of a provider. Raises `ProviderNotConnected` if this server has none."""
        task: ProviderTask | None = getattr(self._registry(), "tasks", {}).get(str(name))
        if task is None:
            raise ProviderNotConnected(
                f"The internal provider {str(name)!r} has no executor in this server", headers=_RETRY_AFTER
            )
        return task

    async def send(self, name: JobName, provider_id: UUID, request_id: str, params: str) -> None:
        """Send a request to the broker. Raises `ServiceUnavailable` if it does not accept it."""
        task = self.find(name)
        call = {"params_json": params, "provider_id": str(provider_id), "request_id": request_id}
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await task.kiq(**call, token=await self._tokens.of_request(name, provider_id, request_id))
        except Exception as error:
            logger.warning("Did not dispatch a request to provider=%s: error=%r", name, error)
            raise ServiceUnavailable(
                f"The broker did not accept the request to provider {str(name)!r}; repeat it later",
                headers=_RETRY_AFTER,
            ) from error


# Register internal providers in the database, and their requests with a broker.

_METHODS = ("model_json_schema", "model_validate", "read")
# Jobs have their full name as the name of their task.
_TASK_PREFIX = "provider:"


def register_internal_providers(
    broker: "AsyncBroker", providers: Sequence[type[Any]], executor: InternalProviderExecutor
) -> InternalProviderRegistry:
    """Register a task for each provider class with a broker, and return the registry.

    Call it in the server, and set the result as ``app.state.internal_provider_registry``; and in the broker's
    worker processes, which call the executor. Its methods `start` and `stop`, if it has them, are called when
    such a process starts and stops. `ensure_internal_providers` creates the providers in the database. Raises
    TypeError for what is no provider or executor, and ValueError for an invalid name.
    """
    if not callable(executor):
        raise TypeError(f"executor is {executor!r:.100}, not an async function: see InternalProviderExecutor")
    classes = {str(_offer_of(cls).name): cls for cls in providers}
    if len(classes) < len(providers):
        raise ValueError("providers: two classes have the same category and name; rename one")
    tasks: dict[str, Any] = {
        name: broker.register_task(_call(cls, executor), _TASK_PREFIX + name) for name, cls in classes.items()
    }
    call_with_processes(broker, executor)
    return InternalProviderRegistry(tasks, classes, executor)


async def ensure_internal_providers(
    providers: Sequence[type[Any]], session_factory: Callable[[], Any], *, user_id: Any
) -> None:
    """Create or update the rows of internal providers; several replicas may do so at once.

    `user_id` is the owner, whose token (or a superuser's) the executor uploads results with. A change of the
    class or the owner outdates stored results. Creates missing tables on SQLite. Raises `OutdatedSchema` for
    a PostgreSQL database without them, TypeError and ValueError as `register_internal_providers`.
    """
    owner_id = "" if user_id is None else str(user_id)
    if not owner_id or owner_id.startswith("@"):
        raise ValueError(f"user_id is {user_id!r:.100}: pass the id of the user that uploads the results")
    offers = [_offer_of(cls) for cls in providers]
    database = SessionDatabase(partial(open_session, session_factory))
    await schema.prepare(database)
    await database.write(rules_providers.register_internal, offers, owner_id)


def _offer_of(cls: type[Any]) -> rules_providers.InternalProvider:
    """Return a class as an internal provider. Raises TypeError, ValueError where it cannot be one."""
    name = getattr(cls, "__name__", repr(cls)[:100])
    missing = [method for method in _METHODS if not callable(getattr(cls, method, None))]
    if not isinstance(cls, type) or missing or not getattr(cls, "category", None):
        raise TypeError(
            f"{name} is no provider: pass a class with {', '.join(_METHODS)} and category, such as "
            "one derived from Provider"
        )
    try:
        content_type = getattr(cls, "content_type", "application/json")
        fields = {"category": category_of(cls), "name": name, "content_type": content_type}
        named = ProviderRegisterRequest.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(
            f"{name} cannot be an internal provider: {fault['loc'][0]}: {fault['msg']}"
        ) from error
    full_name = JobName(INTERNAL, named.category, named.name)
    offered = cls.model_json_schema()
    check_size("schema", offered)
    return rules_providers.InternalProvider(full_name, offered, named.content_type)


def _call(cls: type[Any], executor: InternalProviderExecutor) -> Callable[..., Any]:
    call = _with_token(executor)

    # The server knows only the name of a provider, and sends each request with a token.
    async def run(params_json: str, provider_id: str, request_id: str, token: str | None = None) -> None:
        await call(cls, params_json, provider_id, request_id, token)

    return run


def _with_token(executor: Any) -> Callable[..., Awaitable[object]]:
    """Return a function that calls an executor with the token if it takes it, and without it otherwise."""
    call: Callable[..., Awaitable[object]] = with_token(executor) or executor
    try:
        inspect.signature(call).bind(*[None] * 5)
    except TypeError:
        return lambda *args: executor(*args[:-1])
    except ValueError:
        pass  # written in C
    return call
