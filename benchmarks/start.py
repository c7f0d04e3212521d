"""The first second: processor time, time and memory of a server until it is ready, and of imports.

An empty FastAPI application is started before and after each server, and `python -c pass` with the imports.
Modules are compiled, as an installation has them.
"""

import os
import resource
import subprocess
import sys
import time
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.bench import Bench
from benchmarks.servers import TOKEN

_EMPTY = "import uvicorn, fastapi; uvicorn.run(fastapi.FastAPI(), port=0)"
_IMPORTS = {
    "import JobManager": ["-c", "from zndraw_joblib import JobManager"],
    "zndraw-joblib --help": ["-m", "zndraw_joblib", "--help"],
}
_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "ZNDRAW_JOBLIB_ADMIN_TOKEN": TOKEN,
}


class Start(NamedTuple):
    """What a server needed until it was ready: seconds, processor time in seconds, memory in MiB."""

    seconds: float
    processor: float
    memory: float


def run(bench: Bench) -> None:
    """Report the start of a server, of the SDK and of the command line."""
    url = bench.new_url()
    serve(url)  # compile
    servers, ratios = [], []
    after = empty()
    for _ in range(bench.repeats):
        before, server, after = after, serve(url), empty()
        servers.append(server)
        ratios.append((before.processor + after.processor) / 2 / server.processor)
    seconds, processor, memory = map(median, zip(*servers, strict=True))
    bench.report.add("serve until it is ready", seconds, "s")
    bench.report.add("processor time of it", processor, "s", median(ratios))
    bench.report.add("memory then", memory, "MiB")
    if bench.kind != "sqlite":
        return  # imports know no database
    for name, arguments in _IMPORTS.items():
        times = [(_processor_time(["-c", "pass"]), _processor_time(arguments)) for _ in range(bench.repeats)]
        ratio = median(nothing / own for nothing, own in times)
        bench.report.add(f"{name}, processor time", 1000 * median(own for _, own in times), "ms", ratio)


def serve(url: str) -> Start:
    """Start and stop a server on a database."""
    return _start(["-m", "zndraw_joblib", "serve", "--port", "0", "--database-url", url], " serves ")


def empty() -> Start:
    """Start and stop an application without routes."""
    return _start(["-c", _EMPTY], "Uvicorn running on")


def _start(arguments: list[str], ready: str) -> Start:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], env=_ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert any(ready in line for line in process.stderr), f"{arguments} did not become ready"
    seconds = time.perf_counter() - began
    usage = psutil.Process(process.pid)
    times, memory = usage.cpu_times(), usage.memory_info().rss / 2**20
    process.terminate()
    process.stderr.close()
    process.wait(timeout=30)
    return Start(seconds, times.user + times.system, memory)


def _processor_time(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, env=_ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
