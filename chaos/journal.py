"""What a worker writes down of itself: a file of its own, one JSON line for each event, in one write."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Journal:
    """Appends lines; a process that is killed leaves whole ones."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, event: str, **fields: Any) -> None:
        """Write down that something happens now."""
        line = {"event": event, "at": time.time(), "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Effect:
    """A task's work was begun (`started`) or done (`finished`) in a process."""

    event: str
    at: float
    pid: int
    task: str
    attempt: int
    worker: str


@dataclass(slots=True)
class Call:
    """A request of a worker, and its answer as far as one came.

    `kind` is `claim`, `report`, `beat`, `register` or `leave`. `worker`, `task` and `attempt` are what the
    request says or, of a claim and a registration, the answer. `asked` is the status that a report wanted,
    `became` the status in its answer.
    """

    kind: str
    pid: int
    sent_at: float
    worker: str | None = None
    task: str | None = None
    attempt: int | None = None
    asked: str | None = None
    answered_at: float | None = None
    code: int | None = None
    became: str | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the server has said yes."""
        return self.code is not None and self.code < 300


def read(folder: Path) -> tuple[list[Effect], list[Call]]:
    """Return what all workers wrote down, in the order of time."""
    effects: list[Effect] = []
    calls: list[Call] = []
    for path in folder.glob("*.jsonl"):
        open_calls: dict[int, Call] = {}
        for line in _lines(path):
            event, number = line.pop("event"), line.pop("number", 0)
            if event == "sent":
                call = open_calls[number] = Call(sent_at=line.pop("at"), **line)
                calls.append(call)
            elif event == "answered":
                call = open_calls.pop(number)
                call.answered_at = line.pop("at")
                for name, value in line.items():
                    setattr(call, name, value)
            else:
                effects.append(Effect(event, **line))
    return sorted(effects, key=lambda it: it.at), sorted(calls, key=lambda it: it.sent_at)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)
