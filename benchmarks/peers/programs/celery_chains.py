"""Chains and chords of Celery, with Valkey as broker and as result backend."""

import sys

from celery import Celery, chain, chord, group
from common import URL
from marks import mark_times

app = Celery("bench", broker=URL, backend=URL)


@app.task(name="step")
def step(number: int) -> None:
    """Write when it ran."""
    mark_times(number)


if __name__ == "__main__":
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "chain":
        chain(step.si(first + i) for i in range(count)).apply_async()
    elif kind == "fan":
        members = group(step.si(first + i) for i in range(1, count + 1))
        chain(step.si(first), members, step.si(first + count + 1)).apply_async()
    elif kind == "group":
        chord((step.si(first + i) for i in range(count)), step.si(first + count)).apply_async()
