"""The steps of scenarios, as data: what the kit does, and what it waits for."""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zndraw_joblib.testing.conformance.proxy import Exchange, Fault
from zndraw_joblib.testing.conformance.stage import JOB, ROOM, Deviation, Stage
from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.statuses import TERMINAL

_MAX_SHOWN = 200
_ACTIONS = {
    "cancel": ("PATCH", "", {"status": "cancelled"}),
    "release": ("POST", "/release", {}),
    "fail": ("POST", "/fail", {}),
}


class Step(ABC):
    """A step of a scenario."""

    @abstractmethod
    def play(self, stage: Stage) -> None:
        """Do it. Raises `Deviation`."""


@dataclass(frozen=True)
class Submit(Step):
    """Submit a task with this payload, and `options` of a submit. With `copies`, several: name-1, name-2 …"""

    name: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 1

    def play(self, stage: Stage) -> None:
        """Submit it."""
        for number in range(1, self.copies + 1):
            body = {"payload": dict(self.payload), **self.options}
            task = stage.server.request("POST", f"/rooms/{ROOM}/tasks/{JOB}", body)
            name = self.name if self.copies == 1 else f"{self.name}-{number}"
            stage.tasks[name] = task["id"]


@dataclass(frozen=True)
class Starts(Step):
    """The worker claims the task, and reports `running`, or claims it with `start`."""

    name: str
    attempts: int = 1
    within: float = 15

    def play(self, stage: Stage) -> None:
        """Wait for it."""
        until = time.monotonic() + self.within * stage.patience
        while True:
            task = stage.get_task(self.name)
            if task["status"] == "running" and task["attempts"] >= self.attempts:
                return
            if task["status"] in TERMINAL or time.monotonic() > until:
                raise Deviation(f"task {self.name!r} is {_described(task)}, and should be running")
            time.sleep(0.05)


@dataclass(frozen=True)
class Ends(Step):
    """The task ends: its status, its result, a part of its error, and how many attempts it had."""

    name: str
    status: str = "completed"
    within: float = 15
    result: Any = ...
    error: str = ""
    attempts: int = 1

    def play(self, stage: Stage) -> None:
        """Wait for it, and compare."""
        until = time.monotonic() + self.within * stage.patience
        task = stage.get_task(self.name, self.within * stage.patience)
        while task["status"] not in TERMINAL and (left := until - time.monotonic()) > 0:
            task = stage.get_task(self.name, left)
        if task["status"] != self.status or self.error not in (task["error"] or ""):
            expected = self.status + (f" with {self.error!r} in its error" if self.error else "")
            raise Deviation(f"task {self.name!r} is {_described(task)}, and should be {expected}")
        if self.result is not ... and _differs(task["result"], self.result):
            raise Deviation(
                f"task {self.name!r} has the result {_short(task['result'])}, not {_short(self.result)}"
            )
        if task["attempts"] != self.attempts:
            raise Deviation(f"task {self.name!r} has had {task['attempts']} attempts, not {self.attempts}")


@dataclass(frozen=True)
class Waits(Step):
    """The task is back in its queue after its first attempt."""

    name: str
    within: float = 15

    def play(self, stage: Stage) -> None:
        """Wait for it."""
        until = time.monotonic() + self.within * stage.patience
        while (task := stage.get_task(self.name))["status"] != "pending" or not task["attempts"]:
            if task["status"] in TERMINAL or time.monotonic() > until:
                raise Deviation(f"task {self.name!r} is {_described(task)}, and should wait for a retry")
            time.sleep(0.05)


@dataclass(frozen=True)
class Settles(Step):
    """The worker has completed the task, or has given it back to its queue."""

    name: str

    def play(self, stage: Stage) -> None:
        """Read it."""
        if (task := stage.get_task(self.name))["status"] not in {"completed", "pending"}:
            raise Deviation(
                f"it has left task {self.name!r} {_described(task)}; it should be completed or pending"
            )


@dataclass(frozen=True)
class StoredBytes(Step):
    """The stored result of the task has this size, and each byte is an `x`."""

    name: str
    size: int

    def play(self, stage: Stage) -> None:
        """Read and compare it."""
        content = stage.server.read_result(stage.tasks[self.name]).content
        if content != b"x" * self.size:
            raise Deviation(f"the result of {self.name!r} is {_short(content)}, not {self.size} times 'x'")


@dataclass(frozen=True)
class Shows(Step):
    """The task has this progress, or a line of its log contains this text."""

    name: str
    current: float | None = None
    line: str = ""

    def play(self, stage: Stage) -> None:
        """Read and compare them."""
        progress = stage.get_task(self.name).get("progress") or {}
        if self.current is not None and progress.get("current") != self.current:
            raise Deviation(f"the progress of {self.name!r} is {progress}, without current {self.current:g}")
        lines = stage.server.request("GET", f"/tasks/{stage.tasks[self.name]}/log")["lines"]
        if self.line and not any(self.line in line["text"] for line in lines):
            raise Deviation(f"the log of {self.name!r} has {len(lines)} lines, none with {self.line!r}")


@dataclass(frozen=True)
class Act(Step):
    """An operator or the submitter acts on the task."""

    name: str
    action: Literal["cancel", "release", "fail"]

    def play(self, stage: Stage) -> None:
        """Send the request."""
        method, path, body = _ACTIONS[self.action]
        stage.server.request(method, f"/tasks/{stage.tasks[self.name]}{path}", body)


@dataclass(frozen=True)
class Advance(Step):
    """Time passes at the server; without `keep_workers` each worker has been silent for so long."""

    seconds: float
    keep_workers: bool = True

    def play(self, stage: Stage) -> None:
        """Advance the clock."""
        stage.server.advance(self.seconds, keep_workers=self.keep_workers)


@dataclass(frozen=True)
class Lose(Step):
    """The next requests of a kind, or their answers, are lost; see `Fault`."""

    on: str
    how: Literal["request", "answer", "unavailable", "page", "twice", "newer"]
    times: int = 1

    def play(self, stage: Stage) -> None:
        """Set the fault."""
        stage.faults.append(Fault(self.on, self.how, self.times))
        stage.proxy.faults.append(stage.faults[-1])


@dataclass(frozen=True)
class Lost(Step):
    """All faults have happened: the worker has sent the requests that they concern."""

    within: float = 15

    def play(self, stage: Stage) -> None:
        """Wait for them."""
        if not stage.wait_until(lambda _: not any(fault.left for fault in stage.faults), self.within):
            missing = [
                f"{one.on!r} {one.times - one.left} of {one.times} times" for one in stage.faults if one.left
            ]
            raise Deviation(f"it sent {' and '.join(missing)} within {self.within * stage.patience:g} s")


@dataclass(frozen=True)
class RepeatsClaim(Step):
    """The claim whose answer was lost is repeated with the same `claim_id` or `Idempotency-Key`."""

    within: float = 15

    def play(self, stage: Stage) -> None:
        """Compare the claims."""

        def is_repeated(exchanges: list[Exchange]) -> bool:
            keys = [_claim_key(exchange) for exchange in exchanges if exchange.operation == "claim"]
            return key in keys[keys.index(key) + 1 :]

        lost = next(exchange for exchange in stage.proxy.exchanges if exchange.fate == "answer lost")
        if (key := _claim_key(lost)) is None:
            raise Deviation(f"it sent a claim without claim_id and Idempotency-Key: {lost}")
        if not stage.wait_until(is_repeated, self.within):
            raise Deviation(f"it did not repeat the claim whose answer was lost with its key {key}")


@dataclass(frozen=True)
class Heartbeats(Step):
    """At least this number of heartbeats have named the task with its attempt."""

    name: str
    least: int

    def play(self, stage: Stage) -> None:
        """Count them."""
        sent = [exchange for exchange in stage.proxy.exchanges if exchange.operation == "heartbeat"]
        named = sum(_names(exchange, stage.tasks[self.name]) for exchange in sent)
        if named < self.least:
            raise Deviation(
                f"it sent {len(sent)} heartbeats, {named} with task {self.name!r} and its attempt; at least "
                f"{self.least} should have them"
            )


@dataclass(frozen=True)
class Registers(Step):
    """The worker registers the job this number of times in all."""

    times: int = 2
    within: float = 20

    def play(self, stage: Stage) -> None:
        """Wait for it."""
        stage.wait_for_registration(self.times, self.within)


@dataclass(frozen=True)
class KillServer(Step):
    """The server is killed. What the worker sends meanwhile is lost."""

    def play(self, stage: Stage) -> None:
        """Kill it."""
        stage.proxy.target = None
        stage.server.kill()


@dataclass(frozen=True)
class StartServer(Step):
    """The server starts again, after the worker has tried a request or these seconds."""

    after: float = 2

    def play(self, stage: Stage) -> None:
        """Start it."""
        time.sleep(self.after)
        stage.server.start()
        stage.proxy.target = stage.server.port


@dataclass(frozen=True)
class Idle(Step):
    """For a number of seconds there is no task. The worker sends at most `rate` requests a second."""

    seconds: float
    rate: float = 4

    def play(self, stage: Stage) -> None:
        """Count the requests."""
        before = len(stage.proxy.exchanges)
        time.sleep(self.seconds)
        # A connection of Socket.IO is no poll for tasks.
        sent = sum(one.path.startswith(PREFIX) for one in stage.proxy.exchanges[before:])
        if sent > self.rate * self.seconds:
            raise Deviation(
                f"it sent {sent} requests in {self.seconds:g} s without a task, and should wait on the "
                "server with 'Prefer: wait=N', or pause"
            )


@dataclass(frozen=True)
class Drain(Step):
    """An operator drains the worker."""

    def play(self, stage: Stage) -> None:
        """Drain all workers."""
        for worker in stage.server.request("GET", "/workers")["items"]:
            stage.server.request("POST", f"/workers/{worker['id']}/drain")


@dataclass(frozen=True)
class RemoveWorker(Step):
    """The server removes the worker, as one that was silent for too long."""

    def play(self, stage: Stage) -> None:
        """Remove all workers."""
        for worker in stage.server.request("GET", "/workers")["items"]:
            stage.server.request("DELETE", f"/workers/{worker['id']}")


@dataclass(frozen=True)
class Terminate(Step):
    """The worker's process gets SIGTERM."""

    def play(self, stage: Stage) -> None:
        """Send it."""
        stage.worker.send(signal.SIGTERM)


@dataclass(frozen=True)
class Exits(Step):
    """The worker's process ends, and has removed its worker before. Any exit code, or 0 only."""

    within: float = 20
    only_zero: bool = False

    def play(self, stage: Stage) -> None:
        """Wait for it."""
        code = stage.worker.wait(self.within * stage.patience)
        if code is None:
            raise Deviation(f"it still runs {self.within * stage.patience:g} s later")
        if self.only_zero and code != 0:
            raise Deviation(f"it has exited with code {code}, not 0")
        if left := stage.server.request("GET", "/workers")["items"]:
            raise Deviation(f"it has exited without removing its worker (DELETE /workers/{left[0]['id']})")


def _claim_key(exchange: Exchange) -> str | None:
    body = exchange.body
    claim_id = body.get("claim_id") if isinstance(body, dict) else None
    return claim_id or exchange.headers.get("idempotency-key")


def _names(exchange: Exchange, task_id: str) -> bool:
    body = exchange.body if isinstance(exchange.body, dict) else {}
    tasks = body.get("tasks") or []
    return any(task.get("id") == task_id and isinstance(task.get("attempt"), int) for task in tasks)


def _differs(value: Any, expected: Any) -> bool:
    # True is 1 in Python, and 1.0 is 1; in JSON they differ.
    return repr(value) != repr(expected)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"


def _described(task: dict[str, Any]) -> str:
    error = f" ({task['error_code']}: {_short(task['error'])})" if task["error"] else ""
    return f"{task['status']} in attempt {task['attempt']}{error}"
