"""What happens on the stage: everything is submitted, one worker is killed, the rest goes on."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from zndraw_joblib.cli.client import Client
from zndraw_joblib.cli.demo.modules import CountModule
from zndraw_joblib.cli.demo.outcome import Kill, Outcome
from zndraw_joblib.cli.demo.report import Report
from zndraw_joblib.cli.demo.stage import WORKERS, Stage
from zndraw_joblib.cli.refusal import Refusal
from zndraw_joblib.contract.messages import MAX_PAGE, TaskResponse
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

ROOM = "stdlib"
_PICK_UP_ROOM = "pick-up"
_PICK_UPS = 30
_SMALL_MODULE = "__future__.py"
_SUBMITTERS = 8
_LOOK_SECONDS = 0.2
_STILL_SECONDS = 0.05
_WORKERS_START_SECONDS = 30.0
# So many of a hundred tasks have ended when the worker is killed.
_KILL_AT_PERCENT = 35


class Play:
    """One run of the demo."""

    def __init__(self, stage: Stage, server: Client, modules: list[str], report: Report) -> None:
        self._stage = stage
        self._server = server
        self._modules = modules
        self._report = report
        self._submits: list[Future[UUID]] = []

    def run(self) -> Outcome:
        """Do everything; return what came of it."""
        self._wait_for_workers()
        with _submitters() as pool, self._report.progress(len(self._modules)):
            self._submits = [pool.submit(self._submit, path) for path in self._modules]
            kill = self._kill_one()
            self._report.tell_kill(kill)
            self._watch(lambda: self._server.get_task(kill.task.id).status in TERMINAL)
            self._report.tell_death(self._server.get_task(kill.task.id), kill)
            self._watch(lambda: self._ended() == len(self._modules))
        submitted = {submit.result() for submit in self._submits}
        return Outcome(submitted, list(self._every_task()), kill, self._pick_ups())

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + _WORKERS_START_SECONDS
        while self._server.workers(ROOM, limit=0).total < WORKERS:
            self._stage.check()
            if time.monotonic() > deadline:
                raise Refusal(f"The workers did not start in {_WORKERS_START_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)

    def _submit(self, path: str) -> UUID:
        return UUID(self._server.submit(CountModule(path=path), room=ROOM))

    def _watch(self, is_over: Callable[[], bool], every: float = _LOOK_SECONDS) -> None:
        """Show how the tasks end until `is_over`, and that nothing else ends."""
        while True:
            self._report.show_progress(self._ended())
            self._stage.check()
            for submit in self._submits:
                if submit.done():
                    submit.result()
            if is_over():
                return
            time.sleep(every)

    def _ended(self) -> int:
        return sum(self._server.tasks(ROOM, status=status, limit=0).total for status in sorted(TERMINAL))

    def _kill_one(self) -> Kill:
        """Kill a worker in the middle of the work, while it holds a task."""
        goal = len(self._modules) * _KILL_AT_PERCENT / 100
        self._watch(lambda: self._ended() >= goal, _STILL_SECONDS)
        while self._ended() < len(self._modules):
            pids = self._pids()
            for task in self._server.tasks(ROOM, status=TaskStatus.RUNNING).items:
                pid = pids.get(task.worker_id)
                if pid in self._stage.workers and self._holds_still(pid, task.id):
                    self._stage.kill(pid)
                    return Kill(pid, task, datetime.now(UTC))
        raise Refusal("No worker was at work in the middle of the demo")

    def _pids(self) -> dict[UUID | None, int]:
        """Return the processes of the workers, as their results tell."""
        done = self._server.tasks(ROOM, status=TaskStatus.COMPLETED, limit=MAX_PAGE).items
        return {task.worker_id: task.result["pid"] for task in done}

    def _holds_still(self, pid: int, task_id: UUID) -> bool:
        """Stop a process, and let it go on unless it holds the task once its last words have arrived."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(_STILL_SECONDS)
        if self._server.get_task(task_id).status == TaskStatus.RUNNING:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    def _every_task(self) -> Iterator[TaskResponse]:
        for offset in range(0, len(self._modules), MAX_PAGE):
            yield from self._server.tasks(ROOM, limit=MAX_PAGE, offset=offset).items

    def _pick_ups(self) -> list[timedelta]:
        """Submit tasks one by one to idle workers; return how long each waited for its start."""
        waits = []
        for _ in range(_PICK_UPS):
            task_id = self._server.submit(CountModule(path=_SMALL_MODULE), room=_PICK_UP_ROOM)
            task = self._server.wait_for(task_id)
            if task.started_at is None:
                raise Refusal(f"A task of the last phase {task.status}: {task.error}")
            waits.append(task.started_at - task.created_at)
        return waits


@contextmanager
def _submitters() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(_SUBMITTERS)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
