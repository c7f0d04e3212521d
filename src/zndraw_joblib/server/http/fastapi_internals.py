"""FastAPI's dependency solver, which has no public interface. A test fails when FastAPI changes it."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant, solve_dependencies
from fastapi.exceptions import RequestValidationError


async def solve(request: Request, dependency: Callable[..., Any], **path_params: str) -> Any:
    """Return the value of a host's dependency, with the host's overrides, after closing it.

    `path_params` replace the path parameters of the request.
    """
    path = "".join(f"/{{{name}}}" for name in path_params or request.path_params)
    async with AsyncExitStack() as stack:
        scope = {**request.scope, "path_params": path_params or request.path_params}
        scope |= {"fastapi_inner_astack": stack, "fastapi_function_astack": stack}
        solved = await solve_dependencies(
            request=Request(scope, request.receive),
            dependant=_dependant(dependency, path),
            dependency_overrides_provider=request.app,
            async_exit_stack=stack,
            embed_body_fields=False,
        )
    if solved.errors:
        raise RequestValidationError(solved.errors)
    return solved.values["taken"]


@lru_cache(maxsize=256)
def _dependant(dependency: Callable[..., Any], path: str) -> Dependant:
    async def take(taken: Annotated[Any, Depends(dependency)]) -> None: ...

    return get_dependant(path=path, call=take)
