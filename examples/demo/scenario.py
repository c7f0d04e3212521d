"""The steps of the demo: submit all tasks, kill one worker, wait until all tasks have ended."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from examples.demo.jobs import CountModule
from examples.demo.output import Output
from examples.demo.processes import WORKERS, DemoFailed, DemoProcesses
from examples.demo.summary import Kill, Summary
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.wire.messages import MAX_PAGE, TaskResponse
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

ROOM = "stdlib"
_LATENCY_ROOM = "latency"
_LATENCY_TASKS = 30
_SMALL_MODULE = "__future__.py"
_POLL_SECONDS = 0.2
_KILL_POLL_SECONDS = 0.05
_LAST_REPORT_SECONDS = 0.5
_WORKERS_START_SECONDS = 30.0
# The share of ended tasks at which the demo kills a worker.
_KILL_AT_PERCENT = 15


class Scenario:
    """One run of the demo."""

    def __init__(
        self, processes: DemoProcesses, client: JobClient, modules: list[str], output: Output
    ) -> None:
        self._processes = processes
        self._client = client
        self._modules = modules
        self._output = output

    def run(self) -> Summary:
        """Run all steps and return their results."""
        self._wait_for_workers()
        with self._output.progress(len(self._modules)):
            submitted = self._submit()
            kill = self._kill_one()
            self._output.print_kill(kill)
            self._wait_until(lambda: self._client.get_task(kill.task.id).status in TERMINAL)
            self._output.print_expiry(self._client.get_task(kill.task.id), kill)
            self._wait_until(lambda: self._ended() == len(self._modules))
        return Summary(submitted, list(self._all_tasks()), kill, self._measure_latencies())

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + _WORKERS_START_SECONDS
        while self._client.workers(ROOM, limit=0).total < WORKERS:
            self._processes.check()
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"The {WORKERS} workers did not register within {_WORKERS_START_SECONDS:g} s. "
                    "Run the demo again when the machine is less busy"
                )
            time.sleep(_POLL_SECONDS)

    def _submit(self) -> set[UUID]:
        """Submit a task for each module, in few requests; return their ids."""
        results = self._client.submit_many([CountModule(path=path) for path in self._modules], room=ROOM)
        for result in results:
            if isinstance(result, ProblemException):
                raise result
        return {UUID(str(result)) for result in results}

    def _wait_until(self, condition: Callable[[], bool], every: float = _POLL_SECONDS) -> None:
        """Show the progress until `condition` holds; raise if a process or a submit fails."""
        while True:
            self._output.show_progress(self._ended())
            self._processes.check()
            if condition():
                return
            time.sleep(every)

    def _ended(self) -> int:
        return sum(self._client.tasks(ROOM, status=status, limit=0).total for status in sorted(TERMINAL))

    def _kill_one(self) -> Kill:
        """Kill a worker while it holds a task."""
        goal = len(self._modules) * _KILL_AT_PERCENT / 100
        self._wait_until(lambda: self._ended() >= goal, _KILL_POLL_SECONDS)
        while self._ended() < len(self._modules):
            for worker_id, pid in self._pids().items():
                if pid in self._processes.workers and (task := self._stop_with_task(pid, worker_id)):
                    self._processes.kill(pid)
                    return Kill(pid, task, datetime.now(UTC))
        raise DemoFailed("All tasks ended before a worker could be killed. Run the demo again")

    def _pids(self) -> dict[UUID | None, int]:
        """Return the process id of each worker, taken from the results of its tasks."""
        completed = self._client.tasks(ROOM, status=TaskStatus.COMPLETED, limit=MAX_PAGE).items
        return {task.worker_id: task.result["pid"] for task in completed}

    def _stop_with_task(self, pid: int, worker_id: UUID | None) -> TaskResponse | None:
        """Stop a worker's process and return the task that it runs or runs next; without one, continue it."""
        os.kill(pid, signal.SIGSTOP)
        # A report that the process sent before it stopped arrives within this time.
        time.sleep(_LAST_REPORT_SECONDS)
        for status in (TaskStatus.RUNNING, TaskStatus.CLAIMED):
            for task in self._client.tasks(ROOM, status=status, limit=MAX_PAGE).items:
                if task.worker_id == worker_id:
                    return task
        os.kill(pid, signal.SIGCONT)
        return None

    def _all_tasks(self) -> Iterator[TaskResponse]:
        for offset in range(0, len(self._modules), MAX_PAGE):
            yield from self._client.tasks(ROOM, limit=MAX_PAGE, offset=offset).items

    def _measure_latencies(self) -> list[timedelta]:
        """Submit tasks one by one to idle workers; return the time from each submit to its start."""
        latencies = []
        for _ in range(_LATENCY_TASKS):
            task_id = self._client.submit(CountModule(path=_SMALL_MODULE), room=_LATENCY_ROOM)
            task = self._client.wait_for(task_id)
            if task.started_at is None:
                raise DemoFailed(f"Task {task_id} {task.status} before it started: {task.error}")
            latencies.append(task.started_at - task.created_at)
        return latencies
