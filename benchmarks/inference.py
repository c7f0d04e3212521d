"""A model that runs on one text at a time, and on batches of 32: the jobs of `examples/embeddings.py`."""

import time
from pathlib import Path
from statistics import median

import examples.embeddings

from benchmarks.bench import Bench
from benchmarks.sdk_worker import worker_processes
from benchmarks.servers import TOKEN, serving
from zndraw_joblib import NewTask, Queue

_TASKS, _ROUNDS = 64, 2
_JOBS = {"one by one": "embed_alone", "batches of 32": "embed"}
_MODULE = Path(examples.embeddings.__file__)
_START_SECONDS = 30.0


def run(bench: Bench) -> None:
    """Report how many texts per second one worker with one slot embeds, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in _JOBS}
    with (
        serving("joblib", bench.new_url()) as server,
        worker_processes(server, 1, _MODULE),
        Queue(server, token=TOKEN, room="bench") as queue,
    ):
        names = _jobs(queue)
        for number in range(_ROUNDS + 1):
            for name, job in _JOBS.items():
                rate = _rate(queue, names[job])
                if number:  # the first round loads the model
                    rates[name].append(rate)
    for name, measured in rates.items():
        bench.report.add(name, median(measured), "/s", median(measured) / median(rates["one by one"]))


def _jobs(queue: Queue) -> dict[str, str]:
    """Return the full names of the jobs once the worker has registered both."""
    deadline = time.monotonic() + _START_SECONDS
    while len(names := {job.name: job.full_name for job in queue.jobs()}) < len(_JOBS):
        assert time.monotonic() < deadline, "The worker did not register in time"
        time.sleep(0.05)
    return names


def _rate(queue: Queue, job: str) -> float:
    tasks = [NewTask(job, {"text": f"text {number} of many"}) for number in range(_TASKS)]
    began = time.perf_counter()
    last = queue.submit_many(tasks)[-1]
    assert not isinstance(last, Exception), last
    last.result(timeout=120)  # the only slot runs them in order
    return _TASKS / (time.perf_counter() - began)
