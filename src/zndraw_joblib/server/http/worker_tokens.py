"""The token of internal executors, for a host's own routes and code."""

from typing import Annotated

from fastapi import Depends, FastAPI, Request

from zndraw_joblib.server.http.state import QueueState, queue_state
from zndraw_joblib.wire.problems import InternalServerError


async def get_worker_token(request: Request) -> str:
    """Return a new token of `JobLib(worker_token=…)`, as a dependency of a host's route."""
    return await mint_internal_worker_token(queue_state(request))


async def mint_internal_worker_token(source: FastAPI | QueueState) -> str:
    """Return a new token of `JobLib(worker_token=…)`; `source` is the `JobLib`, or the app that has it.

    Raises `InternalServerError` if it has no `worker_token`.
    """
    state = source if isinstance(source, QueueState) else getattr(source.state, "joblib", None)
    token: str | None = await state.worker_tokens.mint() if isinstance(state, QueueState) else None
    if token is None:
        raise InternalServerError(
            "There is no token for internal executors: pass JobLib(worker_token=function)"
        )
    return token


WorkerTokenDep = Annotated[str, Depends(get_worker_token)]
