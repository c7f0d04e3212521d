"""Tokens with which the executors of internal jobs and providers call the server."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger(__name__)

WorkerToken = Callable[[], Awaitable[str]]
# The class, the payload, the room and the task.
_ARGUMENTS_WITHOUT_TOKEN = 4
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class WorkerTokens:
    """Mints tokens with the host's function `worker_token`, if it has given one to `JobLib`."""

    def __init__(self, function: WorkerToken | None = None) -> None:
        self._function = function
        self._has_warned = False

    async def mint(self) -> str | None:
        """Return a new token; None without a function. Raises TypeError if the function returns no text."""
        if self._function is None:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "An executor takes a token, but JobLib has no worker_token: it gets None. Pass "
                    "JobLib(worker_token=function), an async function that returns a token"
                )
            return None
        token: Any = self._function()
        if inspect.isawaitable(token):
            token = await token
        if not isinstance(token, str) or not token:
            # Not its value, which may be a secret.
            raise TypeError(f"worker_token returned {type(token).__name__}: it must return a text, the token")
        minted: str = token
        return minted


def with_token(executor: Any) -> Callable[..., Awaitable[object]] | None:
    """Return a function that calls an executor with a token as fifth argument; None if it takes none.

    An executor takes one if it has a parameter `token`, or a fifth one without a default value.
    """
    try:
        parameters = inspect.signature(executor).parameters
    except (TypeError, ValueError):
        return None
    positional = [each for each in parameters.values() if each.kind in _POSITIONAL]
    others = positional[_ARGUMENTS_WITHOUT_TOKEN:]
    if others and (others[0].name == "token" or others[0].default is inspect.Parameter.empty):
        call: Callable[..., Awaitable[object]] = executor
        return call
    if "token" in parameters and parameters["token"] not in positional[:_ARGUMENTS_WITHOUT_TOKEN]:
        return lambda *args: executor(*args[:-1], token=args[-1])
    return None
