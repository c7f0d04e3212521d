"""The number of allocations to start or take back: a function of the demand and of what is there."""

from math import ceil
from typing import NamedTuple


class Bounds(NamedTuple):
    """How many workers there may be, how many allocations may wait, and the size of an allocation."""

    max_workers: int
    backlog: int = 1
    per_allocation: int = 1

    @property
    def max_allocations(self) -> int:
        """How many allocations fit into `max_workers`."""
        return self.max_workers // self.per_allocation


class Present(NamedTuple):
    """What is there: the slots of all registered workers, and the allocations of the scaler.

    `allocations` counts those that wait or run, `waiting` those that wait. `coming_slots` are of workers in
    running allocations that have not registered yet, and `slots_per_worker` is how many each has.
    """

    slots: int = 0
    allocations: int = 0
    waiting: int = 0
    coming_slots: int = 0
    slots_per_worker: int = 1


class Plan(NamedTuple):
    """How many allocations to start now, and how many of those that wait are no longer needed."""

    start: int
    surplus: int
    why: str


def plan(desired_slots: int, present: Present, bounds: Bounds) -> Plan:
    """Return what to do, and why, as the end of a line of the log.

    Each allocation is assumed to bring all of its slots. Running ones are never taken back: they leave when
    they are idle.
    """
    size = bounds.per_allocation * max(1, present.slots_per_worker)
    missing = desired_slots - present.slots - present.coming_slots - present.waiting * size
    if missing <= 0:
        surplus = min(present.waiting, -missing // size)
        return Plan(0, surplus, "it is enough" if not surplus else "there is more than enough")
    wanted = ceil(missing / size)
    free = max(0, bounds.max_allocations - present.allocations)
    queue = max(0, bounds.backlog - present.waiting)
    start = min(wanted, free, queue)
    if start == wanted:
        return Plan(start, 0, _missing(missing))
    limit = f"--max-workers {bounds.max_workers}" if free <= queue else f"--backlog {bounds.backlog}"
    return Plan(start, 0, f"{_missing(missing)}, and {limit} allows no more")


def _missing(slots: int) -> str:
    return "1 slot is missing" if slots == 1 else f"{slots} slots are missing"
