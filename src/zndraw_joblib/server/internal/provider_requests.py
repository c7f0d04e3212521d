"""Requests to internal providers: the server sends them to a broker, whose processes upload the results."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from zndraw_joblib.server.internal.worker_tokens import WorkerTokens
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.problems import ProviderNotConnected, ServiceUnavailable

logger = logging.getLogger(__name__)

_SEND_SECONDS = 20.0
_RETRY_AFTER = {"Retry-After": "2"}


class InternalProviderExecutor(Protocol):
    """Answers requests to internal providers in the process that gets them from the broker.

    It reads ``provider_cls.model_validate_json(params_json)`` and uploads the result, with `token`, to
    ``POST /v1/joblib/providers/{provider_id}/results`` with the header ``X-Request-Hash: {request_id}``.
    `token` is of `JobLib(worker_token=…)`, None without it.
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
                await task.kiq(**call, token=await self._tokens.mint())
        except Exception as error:
            logger.warning("Did not dispatch a request to provider=%s: error=%r", name, error)
            raise ServiceUnavailable(
                f"The broker did not accept the request to provider {str(name)!r}; repeat it later",
                headers=_RETRY_AFTER,
            ) from error
