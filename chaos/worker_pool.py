"""The worker processes of a run: start, kill, pause and resume them."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from chaos import jobs, worker
from chaos.server import TOKEN

_SHUTDOWN_SECONDS = 20.0
_PAUSE_SECONDS = 5.0


@dataclass
class WorkerSlot:
    """A slot for one worker process at a time, and the jobs that it serves."""

    jobs: Sequence[jobs.Job]
    process: ForkServerProcess | None = None
    is_paused: bool = False

    @property
    def pid(self) -> int:
        """The id of the current process."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid


class WorkerPool:
    """Worker processes for the server at `url`. Each writes a log to `folder`.

    Each worker runs `concurrency` tasks at once; a worker of the ordered job runs one.
    """

    def __init__(self, url: str, folder: Path, concurrency: int = 2) -> None:
        self.concurrency = concurrency
        self._url, self._folder = url, folder
        self._numbers = itertools.count(1)
        # A fork server imports the packages once for all workers.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["chaos.worker"])
        self.slots: list[WorkerSlot] = []

    def add(self, served: Sequence[jobs.Job]) -> WorkerSlot:
        """Add a slot and start its worker."""
        slot = WorkerSlot(served)
        self.slots.append(slot)
        self.start(slot)
        return slot

    def start(self, slot: WorkerSlot) -> None:
        """Start a worker in a slot."""
        concurrency = 1 if jobs.ORDERED in slot.jobs else self.concurrency
        path = self._folder / f"{next(self._numbers)}.jsonl"
        slot.is_paused = False
        slot.process = self._context.Process(
            target=worker.run, args=(self._url, TOKEN, path, slot.jobs, concurrency), daemon=True
        )
        slot.process.start()

    def kill(self, slot: WorkerSlot) -> None:
        """Kill a worker and wait for its end."""
        assert slot.process is not None
        slot.process.kill()
        slot.process.join()

    def terminate(self, slot: WorkerSlot) -> None:
        """Send SIGTERM to a worker and wait for its end."""
        assert slot.process is not None
        slot.process.terminate()
        slot.process.join(_SHUTDOWN_SECONDS)
        assert slot.process.exitcode is not None, f"The worker did not end within {_SHUTDOWN_SECONDS:g} s"

    def pause(self, slot: WorkerSlot) -> None:
        """Send SIGSTOP to a worker and wait until all its threads have stopped.

        The signal stops one thread, which stops the others: on a busy machine they run on until then.
        """
        slot.is_paused = True
        os.kill(slot.pid, signal.SIGSTOP)
        process, deadline = psutil.Process(slot.pid), time.monotonic() + _PAUSE_SECONDS
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, f"The worker did not stop within {_PAUSE_SECONDS:g} s"
            time.sleep(0.001)

    def resume(self, slot: WorkerSlot) -> None:
        """Send SIGCONT to a worker."""
        slot.is_paused = False
        os.kill(slot.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Terminate all workers, and kill those that do not end."""
        running = [slot.process for slot in self.slots if slot.process is not None]
        for process in running:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + _SHUTDOWN_SECONDS
        alive = {process.sentinel: process for process in running if process.is_alive()}
        while alive and time.monotonic() < deadline:
            for ended in wait(list(alive), deadline - time.monotonic()):
                del alive[ended]  # type: ignore[arg-type]
        for process in running:
            process.kill()
            process.join()
        self.slots = []
