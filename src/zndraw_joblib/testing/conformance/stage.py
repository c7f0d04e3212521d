"""The stage of a scenario: a server, a proxy and the worker, and what is checked after each scenario."""

import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from zndraw_joblib.client.connection import TOKEN_VARIABLE, URL_VARIABLE
from zndraw_joblib.testing.conformance.proxy import Exchange, Fault, Proxy, TaskReport
from zndraw_joblib.testing.conformance.server import CannotStart, Server, clean_environment, tail
from zndraw_joblib.wire.statuses import TERMINAL

JOB = "@global:jobs:conformance"
ROOM = "conformance"
# Of the job, so that the scenarios decide when a failed or lost task runs again.
POLICY = {
    "max_attempts": 3,
    "retry_on": ["error", "worker_lost"],
    "backoff": {"base_seconds": 10, "factor": 1},
}
_TOKEN_SECONDS = 30 * 86_400
TOKEN = {"jobs": [JOB], "rooms": ["@global"], "expires_in_seconds": _TOKEN_SECONDS}
# How many requests a second a worker may send on average, besides those of tasks.
_IDLE_RATE, _IDLE_START = 5, 20
_MOST_EQUAL_REFUSALS = 3
_REFUSED = frozenset({400, 403, 405, 413, 415, 422})
_SHOWN = 12
# How often to look whether the worker still runs.
_LOOK_SECONDS = 0.5


class Deviation(Exception):
    """The worker does not what the scenario requires; the text says what it did."""


class WorkerProcess:
    """The command under test, in a process group of its own."""

    def __init__(self, command: list[str], log: Path, url: str, token: str) -> None:
        self._command, self._log = command, log
        self._environment = clean_environment() | {URL_VARIABLE: url, TOKEN_VARIABLE: token}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Raises `CannotStart`."""
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - what the caller wants to test
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise CannotStart(f"The command {self._command[0]!r} cannot be started: {error}") from error

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end; return the exit code, None if it still runs after these seconds."""
        assert self._process is not None  # noqa: S101 - it was started
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """Kill the process and those that it has started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def output(self) -> str:
        """The last lines that it has written."""
        return tail(self._log)


class Stage:
    """One scenario: `tasks` are the ids of its tasks by their names. `patience` multiplies all times."""

    def __init__(self, server: Server, proxy: Proxy, worker: WorkerProcess, patience: float) -> None:
        self.server, self.proxy, self.worker, self.patience = server, proxy, worker, patience
        self.tasks: dict[str, str] = {}
        self.faults: list[Fault] = []
        self._began = time.monotonic()

    def open(self) -> None:
        """Start the worker, and wait until it has registered the job."""
        if not self.server.is_running:
            self.server.start()
        self.proxy.target = self.server.port
        self.worker.start()
        self.wait_for_registration(1, 20)
        self.server.request("PUT", f"/rooms/@global/jobs/{JOB}", POLICY)
        self._began = time.monotonic()

    def wait_for_registration(self, times: int, seconds: float) -> None:
        """Wait until the job was registered this number of times. Raises `Deviation`."""

        def is_registered(exchanges: list[Exchange]) -> bool:
            answers = [e.answer for e in exchanges if e.operation == "register" and e.status in {200, 201}]
            names = [answer.get("full_name") for answer in answers if isinstance(answer, dict)]
            return names.count(JOB) >= times

        until = time.monotonic() + seconds * self.patience
        while not self.proxy.wait_for(is_registered, _LOOK_SECONDS):
            code = self.worker.wait(0)
            if code is not None or time.monotonic() > until:
                again = "again " if times > 1 else ""
                how = (
                    f"within {seconds * self.patience:g} s"
                    if code is None
                    else f"and has exited with code {code}"
                )
                raise Deviation(f"it did not register {JOB} {again}{how}")

    def wait_until(self, condition: Any, seconds: float) -> Any:
        """Wait for a condition on the exchanges; return its value."""
        return self.proxy.wait_for(condition, seconds * self.patience)

    def get_task(self, name: str, wait: float | None = None) -> dict[str, Any]:
        """Return a task."""
        task: dict[str, Any] = self.server.request("GET", f"/tasks/{self.tasks[name]}", wait=wait)
        return task

    def reports(self, name: str | None = None) -> list[TaskReport]:
        """Return the reports of the worker, of one task if named."""
        task_id = None if name is None else self.tasks[name]
        reports = [report for exchange in self.proxy.exchanges for report in exchange.reports]
        return [report for report in reports if task_id in {None, report.task_id}]

    def close(self) -> None:
        """Stop the worker, and leave nothing of it for the next scenario."""
        self.worker.kill()
        self.proxy.target = None
        self.proxy.forget()
        if not self.server.is_running:
            self.server.start()
        for worker in self.server.request("GET", "/workers")["items"]:
            with suppress(httpx.HTTPStatusError):
                self.server.request("DELETE", f"/workers/{worker['id']}")
        for task_id in self.tasks.values():
            with suppress(httpx.HTTPStatusError):
                self.server.request("PATCH", f"/tasks/{task_id}", {"status": "cancelled"})

    def show(self) -> list[str]:
        """Return the last requests of the worker, for a report of a failure."""
        return [str(exchange) for exchange in self.proxy.exchanges[-_SHOWN:]]

    # What holds in every scenario.

    def check_always(self) -> None:
        """Check what each worker must do in all scenarios. Raises `Deviation`."""
        exchanges = list(self.proxy.exchanges)
        for exchange in exchanges:
            if exchange.status in _REFUSED and exchange.operation != "other":
                detail = exchange.answer.get("detail") if isinstance(exchange.answer, dict) else ""
                raise Deviation(f"it sent a request that is not valid: {exchange}: {detail}")
        self._check_fencing(exchanges)
        self._check_refusals(exchanges)
        tasks = sum(len(exchange.claimed) for exchange in exchanges)
        seconds = time.monotonic() - self._began
        most = _IDLE_START + 10 * tasks + _IDLE_RATE * seconds
        if len(exchanges) > most:
            raise Deviation(
                f"it sent {len(exchanges)} requests in {seconds:.1f} s for {tasks} tasks; wait on the server "
                "with 'Prefer: wait=N', and pause before a repeat"
            )

    def _check_fencing(self, exchanges: list[Exchange]) -> None:
        claimed: dict[str, set[int]] = {}
        for exchange in exchanges:
            for task in exchange.claimed:
                claimed.setdefault(task["id"], set()).add(task["attempt"])
            for report in exchange.reports:
                if report.attempt is None:
                    raise Deviation(f"it sent a report without the attempt of its claim: {exchange}")
                if report.attempt not in claimed.get(report.task_id, ()):
                    raise Deviation(
                        f"it reported attempt {report.attempt}, which it had not claimed: {exchange}"
                    )

    def _check_refusals(self, exchanges: list[Exchange]) -> None:
        refused = Counter(
            (report.task_id, report.status, report.attempt)
            for exchange in exchanges
            for report in exchange.reports
            if report.status in TERMINAL and report.answered in {404, 409}
        )
        for (task_id, status, _), times in refused.items():
            if times > _MOST_EQUAL_REFUSALS:
                raise Deviation(
                    f"it repeated the report {status!r} of task {task_id}, which the server had refused with "
                    f"409 or 404, {times} times"
                )
