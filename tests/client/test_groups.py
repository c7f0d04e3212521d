"""Groups from Python, with both kinds of clients and real workers."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from client.both import Both
from client.jobs import Area, Fail
from zndraw_joblib import GroupSealed, InvalidPayload, NewTask, ResultExpired
from zndraw_joblib.client.flows import TaskFailed
from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


class Sum(Extension):
    """The sum of the results of a group."""

    category: ClassVar[Category] = Category.ANALYSIS
    values: list[Any]
    counts: dict[str, int]

    def run(self, vis: Any, *, task: Any) -> Any:
        """Return the sum, how many there are, and the counts."""
        return [sum(value or 0 for value in self.values), len(self.values), self.counts["completed"]]


class Anything(Extension):
    """Returns its value."""

    category: ClassVar[Category] = Category.ANALYSIS
    value: Any = None

    def run(self, vis: Any, *, task: Any) -> Any:
        """Return the value."""
        return self.value


async def test_a_group_maps_and_its_end_sums_the_results(queue: Both, worker: Make, room: str) -> None:
    """The worker of the last task gets the results as a list, in the order of submission."""
    manager = worker()
    for job in (Area, Fail, Sum):
        manager.register(job, room=room)
    payload = {"values": {"$group": "results"}, "counts": {"$group": "counts"}}
    group = Both(await queue.group("areas", on_end=NewTask("Sum", payload)))
    await group.create()
    await group.map("Area", [{"width": width} for width in range(5)])
    await group.submit(Fail())
    await group.map(None, [Area(width=10)])
    await group.seal()
    ended = await group.wait(60, progress=True)
    assert (ended.total, ended.counts.failed, ended.progress) == (7, 1, 1.0)
    last = Both(queue.inner.task(ended.on_end_task))
    assert await last.result(60) == [20, 7, 6]
    found = await group.gather(return_exceptions=True)
    assert found[:5] + found[6:] == [0, 1, 2, 3, 4, 10]
    assert isinstance(found[5], TaskFailed)
    with pytest.raises(TaskFailed):
        await group.gather()
    ends = {str(task.inner) async for task in group.as_completed(timeout=60)}
    assert len(ends) == 7
    with pytest.raises(GroupSealed):
        await group.submit(Area())


async def test_a_group_says_which_item_is_wrong_what_it_waits_for_and_what_was_deleted(
    queue: Both, worker: Make, room: str
) -> None:
    """A list of results without those of deleted tasks would have the others in wrong places."""
    worker().register(Area, room=room)
    group = Both(await queue.group())
    await group.create()
    with pytest.raises(InvalidPayload) as refused:
        await group.map("Area", [{"width": 1}, {"width": "wide"}, {"width": 3}])
    assert refused.value.__notes__ == ["It is item 1; 2 of 3 were submitted"]
    await queue.gather(*group.inner.tasks, timeout=60)
    for progress in (False, True):
        with pytest.raises(TimeoutError, match="2 of 2 tasks have ended, and it is not sealed"):
            await group.wait(0.5, progress=progress)
    await group.seal()
    assert await group.gather(60) == [1, 3]
    ended = await group.wait(60)
    for keeps in (False, True):  # of three tasks, of which retention has deleted one
        before = ended.model_copy(update={"total": 3})
        with pytest.raises(ResultExpired, match=r"1 of the 3 tasks of group .* were deleted"):
            await queue.run(group.inner._new.results(before, return_exceptions=keeps))


async def test_a_block_seals_its_group(open_queue: Callable[..., Both], worker: Make, room: str) -> None:
    """But not one that raises: an incomplete group submits nothing."""
    queue = open_queue(room=room)
    worker().register(Area, room=room)
    inner = queue.inner
    if hasattr(inner, "aclose"):
        async with inner.group() as group:
            await group.submit(Area(width=3))
        with pytest.raises(KeyError):
            async with inner.group() as other:
                raise KeyError
    else:
        with inner.group() as group:
            group.submit(Area(width=3))
        with pytest.raises(KeyError), inner.group() as other:
            raise KeyError
    assert await Both(group).gather(60) == [3]
    again = Both(inner.get_group(str(group.id)))
    assert (await again.refresh()).sealed is True
    assert (await Both(other).refresh()).sealed is False


async def refused(queue: Any, *, is_followed: bool = False, **options: Any) -> Both:
    """Return a group of which the server has refused all tasks; with `is_followed` a task waits for it."""
    group, task, wrong = queue.group(**options), ("Area", {"width": 1}), ("Area", [{"width": "wide"}])

    async def fill() -> None:
        if hasattr(queue, "aclose"):
            async with group:
                if is_followed:
                    await queue.submit(*task, after=[group])
                await group.map(*wrong)
        else:
            with group:
                if is_followed:
                    queue.submit(*task, after=[group])
                group.map(*wrong)

    with pytest.raises(InvalidPayload):
        await fill()
    return Both(group)


async def test_a_block_without_any_task_ends_its_group(
    open_queue: Callable[..., Both], worker: Make, room: str
) -> None:
    """But not if a task would follow nothing."""
    queue = open_queue(room=room).inner
    worker().register(Area, room=room)
    followed = [
        await refused(queue, on_end=NewTask("Area", {"width": 1})),
        await refused(queue, is_followed=True),
    ]
    ended = await (await refused(queue)).refresh()
    assert (ended.sealed, ended.total, ended.ended_at is None) == (True, 0, False)
    assert [(await group.refresh()).sealed for group in followed] == [False, False]


async def test_a_reference_to_another_group_stays_as_it_is(queue: Both, worker: Make, room: str) -> None:
    """Only the task that a group has submitted gets its results: a worker may read more than a submitter."""
    worker().register(Anything, room=room)
    group = Both(await queue.group())
    await group.create()
    await group.submit(Anything(value=1))
    await group.seal()
    await group.wait(60)
    reference = {"$group": "results", "id": str(group.inner.id)}
    task = await queue.submit(Anything(value=reference))
    assert await task.result(60) == reference
