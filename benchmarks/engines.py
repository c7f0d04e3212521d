"""Measure what a task costs on an engine, beside a call of the engine alone: `make engines ARGS=bench`.

Tasks and calls do nothing, and as many of either are in flight. Engines that are not installed are named.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from benchmarks.engine_job import call, nothing
from benchmarks.servers import TOKEN, serving
from zndraw_joblib import JobManager, Queue, connect
from zndraw_joblib.worker import engines
from zndraw_joblib.worker.serving import Runner

ROOM = "bench"
# A process for each processor runs one call; the others wait in the engine.
IN_FLIGHT = (os.cpu_count() or 1) + 6
NUMBER, LONE, ROUNDS = 1000, 50, 3
_SECONDS = 120.0


class Figures(NamedTuple):
    """Rates per second of many, and the median of one alone in milliseconds."""

    rate: float
    alone: float


def pool() -> Executor:
    """Return a pool of the standard library, for comparison."""
    return ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))


def calls(executor: Executor) -> Figures:
    """Measure calls of the engine alone."""
    began = time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        list(threads.map(lambda _: executor.submit(call).result(_SECONDS), range(NUMBER)))
    rate = NUMBER / (time.perf_counter() - began)
    return Figures(rate, _alone(lambda: executor.submit(call).result(_SECONDS)))


def tasks(queue: Queue, http: httpx.Client) -> Figures:
    """Measure tasks of the queue on the engine."""

    def completed() -> int:
        page = http.get(f"/v1/joblib/rooms/{ROOM}/tasks?status=completed&limit=1").raise_for_status()
        return int(page.json()["total"])

    before, began = completed(), time.perf_counter()
    queue.submit_many([nothing.task() for _ in range(NUMBER)], room=ROOM)
    while completed() < before + NUMBER:
        if time.perf_counter() > began + _SECONDS:
            raise TimeoutError("The queue runs no tasks")
        time.sleep(0.02)
    rate = NUMBER / (time.perf_counter() - began)
    return Figures(rate, _alone(lambda: queue.submit(nothing.task(), room=ROOM).result(_SECONDS)))


def _alone(run: Callable[[], object]) -> float:
    times = []
    for _ in range(LONE):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1000 * median(times)


@contextmanager
def _worker(url: str, executor: Executor) -> Iterator[None]:
    with (
        connect(url, token=TOKEN) as api,
        JobManager(api, execute=Runner(), executor=executor, concurrency=IN_FLIGHT) as manager,
    ):
        manager.register(nothing, room=ROOM)
        yield


def measure(make: Callable[[], Executor], url: str) -> tuple[Figures, Figures]:
    """Return the medians of calls and of tasks, measured in turns."""
    executor = make()
    try:
        with (
            _worker(url, executor),
            Queue(url, token=TOKEN) as queue,
            closing(httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"})) as http,
        ):
            queue.submit(nothing.task(), room=ROOM).result(_SECONDS)
            rounds = [(calls(executor), tasks(queue, http)) for _ in range(ROUNDS)]
    finally:
        executor.shutdown()
    alone, queued = zip(*rounds, strict=True)
    return _medians(alone), _medians(queued)


def _medians(rounds: tuple[Figures, ...]) -> Figures:
    return Figures(*map(median, zip(*rounds, strict=True)))


def main() -> None:
    """Print a table of the engines that are installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("names", nargs="*", help="engines, by default all that are installed")
    names = parser.parse_args().names or ["pool", *engines.ENGINES]
    # The processes of some engines import this package, which is not installed.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    print(f"{IN_FLIGHT} in flight, {os.cpu_count()} processors, medians of {ROUNDS} rounds")
    print(f"{'':24}{'calls/s':>10}{'tasks/s':>10}{'one call':>12}{'one task':>12}")
    for name in names:
        module = engines.ENGINES.get(name)
        if module is not None and find_spec(module) is None:
            print(f"{name}: not installed here; `make engines ARGS=bench` measures it in its environment")
            continue
        version = "" if module is None else metadata.version(module)
        make = pool if module is None else getattr(engines, name)
        with (
            tempfile.TemporaryDirectory() as folder,
            serving("joblib", f"sqlite:///{Path(folder)}/q.db") as url,
        ):
            alone, queued = measure(make, url)
        cells = f"{alone.rate:>10.0f}{queued.rate:>10.0f}{alone.alone:>9.1f} ms{queued.alone:>9.1f} ms"
        print(f"{name + ' ' + version:24}{cells}   load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
