"""How many allocations a scaler starts: a function of the demand and of what is there."""

from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zndraw_joblib.worker.scale_plan import Bounds, Present, plan

CASES = [
    # desired, present, bounds; start, surplus
    (0, Present(), Bounds(4), 0, 0),
    (3, Present(), Bounds(4, backlog=4), 3, 0),
    (9, Present(), Bounds(4, backlog=9), 4, 0),
    (9, Present(), Bounds(4), 1, 0),
    (9, Present(waiting=1, allocations=1), Bounds(4), 0, 0),
    # Slots of workers that somebody else has started, idle or busy.
    (3, Present(slots=2), Bounds(4, backlog=4), 1, 0),
    (3, Present(slots=5), Bounds(4, backlog=4), 0, 0),
    # What is on its way is not started again.
    (3, Present(allocations=2, waiting=2), Bounds(8, backlog=8), 1, 0),
    (3, Present(allocations=2, coming_slots=2), Bounds(8, backlog=8), 1, 0),
    # Allocations of several workers with several slots.
    (9, Present(slots_per_worker=4), Bounds(8, backlog=8), 3, 0),
    (9, Present(slots_per_worker=2), Bounds(8, backlog=8, per_allocation=2), 3, 0),
    (99, Present(slots_per_worker=2), Bounds(7, backlog=8, per_allocation=2), 3, 0),
    # What waits and is not needed any more.
    (0, Present(allocations=3, waiting=2, slots=1), Bounds(8), 0, 2),
    (2, Present(allocations=3, waiting=2, slots=1), Bounds(8), 0, 1),
    # Fewer are allowed than are there.
    (9, Present(slots=5, allocations=5), Bounds(4), 0, 0),
]


@pytest.mark.parametrize(("desired", "present", "bounds", "start", "surplus"), CASES)
def test_what_is_missing_is_started_and_no_more(
    desired: int, present: Present, bounds: Bounds, start: int, surplus: int
) -> None:
    """Within the bounds; what waits without need is surplus."""
    assert plan(desired, present, bounds)[:2] == (start, surplus)


def test_a_decision_says_why() -> None:
    """It names the option that allows no more."""
    assert plan(3, Present(), Bounds(9, backlog=9)).why == "3 slots are missing"
    assert plan(3, Present(), Bounds(2, backlog=9)).why.endswith("--max-workers 2 allows no more")
    assert plan(3, Present(), Bounds(9)).why.endswith("--backlog 1 allows no more")
    assert plan(0, Present(), Bounds(9)).why == "it is enough"


SMALL = st.integers(0, 40)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    SMALL,
    SMALL,
    SMALL,
    SMALL,
    SMALL,
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 4),
)
def test_a_plan_is_safe(  # noqa: PLR0917 - one for each number
    desired: int,
    slots: int,
    running: int,
    waiting: int,
    coming: int,
    slots_per_worker: int,
    max_workers: int,
    backlog: int,
    per_allocation: int,
) -> None:
    """It exceeds no bound, starts only what is missing, and all of it when nothing bounds it."""
    present = Present(slots, running + waiting, waiting, coming, slots_per_worker)
    bounds = Bounds(max_workers, backlog, per_allocation)
    start, surplus, why = plan(desired, present, bounds)
    size = slots_per_worker * per_allocation
    missing = desired - slots - coming - waiting * size
    assert why
    assert 0 <= surplus <= waiting
    assert not (start and surplus)
    assert 0 <= start <= max(0, ceil(missing / size))
    assert (present.allocations + start) * per_allocation <= max(
        max_workers, present.allocations * per_allocation
    )
    assert waiting + start <= max(backlog, waiting)
    if start < ceil(missing / size):
        is_full = (present.allocations + start + 1) * per_allocation > max_workers
        assert is_full or waiting + start >= backlog
    # What is left after the surplus is cancelled still covers the demand.
    if surplus:
        assert slots + coming + (waiting - surplus) * size >= desired
