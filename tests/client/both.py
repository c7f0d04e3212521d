"""Call the methods of synchronous and asynchronous clients alike."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

_DONE = object()


class Both:
    """A client or a handle of either kind, whose methods are coroutines. Values are those of the original.

    A blocking method runs in a thread, so that the tests' own coroutines go on.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        if inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
            return lambda *args, **options: _items(found(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            plain = [each.inner if isinstance(each, Both) else each for each in args]
            if inspect.iscoroutinefunction(found):
                result = await found(*plain, **options)
            else:
                result = await asyncio.to_thread(found, *plain, **options)
            return wrapped(result)

        return call


def wrapped(result: Any) -> Any:
    """Return a handle, or a list of handles, so that they are called alike too."""
    if isinstance(result, list):
        return type(result)(map(wrapped, result))
    return Both(result) if hasattr(result, "events") and isinstance(result, str) else result


async def _items(found: AsyncIterator[Any] | Iterator[Any]) -> AsyncIterator[Any]:
    if isinstance(found, AsyncIterator):
        async for item in found:
            yield wrapped(item)
        return
    while (item := await asyncio.to_thread(next, found, _DONE)) is not _DONE:
        yield wrapped(item)
