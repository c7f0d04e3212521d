"""What the programs of all peers share. It runs in each peer's environment, so it uses the standard library.

A program is called with `setup`, `single SECONDS`, `bulk SECONDS` or `fill COUNT`. The last three enqueue
tasks (`single` with 16 calls at a time), and print how many there were and the seconds it took.
"""

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

URL = os.environ.get("BENCH_URL", "")
SLOTS = int(os.environ.get("BENCH_SLOTS", "1"))  # how many tasks a worker process runs at once
BULK = 1_000
_AT_ONCE = 16
_marks = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark() -> None:
    """Count an executed task: the size of the file is their number."""
    os.write(_marks, b".")


def main(
    single: Callable[[], Any],
    bulk: Callable[[int], Any] | None = None,
    *,
    setup: Callable[[], Any] | None = None,
    opened: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
) -> None:
    """Run the command of this process. `single` enqueues a task, `bulk` a number of them; async or not."""
    command, *rest = sys.argv[1:]
    if command == "setup":
        if setup is not None:
            asyncio.run(_setup(setup, opened))
        return
    seconds, count = (float("inf"), int(rest[0])) if command == "fill" else (float(rest[0]), 10**9)
    is_bulk = bulk is not None and command in {"bulk", "fill"}
    call, size = (partial(bulk, BULK), BULK) if is_bulk else (single, 1)
    if inspect.iscoroutinefunction(bulk if is_bulk else single):
        done, took = asyncio.run(_repeat(call, size, seconds, count, opened))
    else:
        done, took = _repeat_in_threads(call, size, seconds, count)
    print(json.dumps({"tasks": done, "seconds": took}))


async def _setup(setup: Callable[[], Any], opened: Callable[[], Any]) -> None:
    async with opened():
        made = setup()
        if inspect.isawaitable(made):
            await made


async def _repeat(
    call: Callable[[], Any], size: int, seconds: float, count: int, opened: Callable[[], Any]
) -> tuple[int, float]:
    async with opened():
        began, done = time.perf_counter(), 0

        async def enqueue() -> None:
            nonlocal done
            while done < count and time.perf_counter() - began < seconds:
                done += size
                await call()

        await asyncio.gather(*[enqueue() for _ in range(1 if size > 1 else _AT_ONCE)])
        return done, time.perf_counter() - began


def _repeat_in_threads(call: Callable[[], Any], size: int, seconds: float, count: int) -> tuple[int, float]:
    began, done = time.perf_counter(), [0] * _AT_ONCE

    def enqueue(index: int) -> None:
        while sum(done) < count and time.perf_counter() - began < seconds:
            done[index] += size
            call()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(enqueue, range(1 if size > 1 else _AT_ONCE)))
    return sum(done), time.perf_counter() - began
