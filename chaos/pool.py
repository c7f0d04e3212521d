"""The worker processes: started, killed, stopped and resumed."""

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

_GOODBYE_SECONDS = 20.0
_STILL_SECONDS = 5.0


@dataclass
class Place:
    """One place in the pool: which jobs its process serves."""

    jobs: Sequence[jobs.Job]
    process: ForkServerProcess | None = None
    is_stopped: bool = False

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid


class Pool:
    """Workers of the server at `url`, which write their journals into `folder`.

    Each runs `concurrency` tasks at once, or one where it serves the job that is done in a line.
    """

    def __init__(self, url: str, folder: Path, concurrency: int = 2) -> None:
        self.concurrency = concurrency
        self._url, self._folder = url, folder
        self._numbers = itertools.count(1)
        # Each worker is a process of its own, but need not import everything again.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["chaos.worker"])
        self.places: list[Place] = []

    def add(self, served: Sequence[jobs.Job]) -> Place:
        """Start a worker in a new place."""
        place = Place(served)
        self.places.append(place)
        self.fill(place)
        return place

    def fill(self, place: Place) -> None:
        """Start a worker in a place."""
        concurrency = 1 if jobs.LINE in place.jobs else self.concurrency
        path = self._folder / f"{next(self._numbers)}.jsonl"
        place.is_stopped = False
        place.process = self._context.Process(
            target=worker.work, args=(self._url, TOKEN, path, place.jobs, concurrency), daemon=True
        )
        place.process.start()

    def kill(self, place: Place) -> None:
        """Kill a worker where it is, and wait until it is gone."""
        assert place.process is not None
        place.process.kill()
        place.process.join()

    def drain(self, place: Place) -> None:
        """End a worker as SIGTERM does, and wait until it is gone."""
        assert place.process is not None
        place.process.terminate()
        place.process.join(_GOODBYE_SECONDS)
        assert place.process.exitcode is not None, "a worker does not end"

    def send(self, place: Place, number: signal.Signals) -> None:
        """Send a worker a signal. Where it is SIGSTOP, return once the worker stands still."""
        place.is_stopped = number == signal.SIGSTOP
        os.kill(place.pid, number)
        if place.is_stopped:
            self._wait_until_still(place)

    def _wait_until_still(self, place: Place) -> None:
        # One thread takes the signal and stops the others: on a busy machine they run on until then.
        process, deadline = psutil.Process(place.pid), time.monotonic() + _STILL_SECONDS
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, "a worker does not stop"
            time.sleep(0.001)

    def stop(self) -> None:
        """End all workers, as SIGTERM does; kill what does not end."""
        running = [place.process for place in self.places if place.process is not None]
        for process in running:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + _GOODBYE_SECONDS
        left = {process.sentinel: process for process in running if process.is_alive()}
        while left and time.monotonic() < deadline:
            for gone in wait(list(left), deadline - time.monotonic()):
                del left[gone]  # type: ignore[arg-type]
        for process in running:
            process.kill()
            process.join()
        self.places = []
