"""Tasks after others from Python, with both kinds of clients and real workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import numpy
import pytest
from databases import on_both
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy
from waiting import until

from client.both import Both
from client.jobs import Area, Fail, Values
from client.test_groups import Anything
from zndraw_joblib import After, NewTask, TaskContext, job
from zndraw_joblib.client.connection import connect
from zndraw_joblib.client.flows import TaskFailed
from zndraw_joblib.client.older_servers import AfterIgnored, CostIgnored, RequirementsIgnored
from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


class Measured(Extension):
    """Returns its value in an object, with as many numbers as it is told."""

    category: ClassVar[Category] = Category.ANALYSIS
    value: float
    numbers: int = 0

    def run(self, vis: Any, *, task: Any) -> Any:
        """Return the value and the numbers."""
        return {"value": self.value, "a/b": [self.value, {"": "empty"}], "numbers": list(range(self.numbers))}


class Total(Extension):
    """Adds up."""

    category: ClassVar[Category] = Category.ANALYSIS
    values: list[float]
    scale: float = 1

    def run(self, vis: Any, *, task: Any) -> float:
        """Return the scaled sum."""
        return self.scale * sum(self.values)


class Kind(Extension):
    """Returns what kind of value it got, and its length."""

    category: ClassVar[Category] = Category.ANALYSIS
    value: Any

    def run(self, vis: Any, *, task: Any) -> Any:
        """Return the class and the length."""
        return [type(self.value).__name__, len(self.value)]


@job(category="analysis")
async def children(task: TaskContext, size: int) -> str:
    """Submit children, and a last one that adds up their results; return its id."""
    parts = [await task.submit_async(Measured(value=number)) for number in range(size)]
    last = await task.submit_async(Total(values=[part.output("/value") for part in parts]))
    return str(last)


@on_both
async def test_a_chain_and_a_fan(queue: Both, worker: Make, room: str) -> None:
    """Each step gets parts of the results of those before it; `after` alone orders them."""
    manager = worker()
    for one in (Measured, Total, Area):
        manager.register(one, room=room)
    parts = [await queue.submit(Measured(value=number)) for number in range(3)]
    total = await queue.submit(Total(values=[part.inner.output("/value") for part in parts], scale="2"))
    chained = await queue.submit(
        "Total", {"values": [total.inner.output(), parts[2].inner.output("/a~1b/0")]}
    )
    last = await queue.submit(Area(width=3), after=[chained.inner, parts[0].inner.id])
    assert [await total.result(60), await chained.result(60), await last.result(60)] == [6, 8, 3]
    states = [await task.refresh() for task in (*parts, total, chained, last)]
    ended = [state.completed_at for state in states]
    assert max(ended[:3]) <= states[3].started_at
    assert ended[4] <= states[5].started_at
    assert states[5].after.tasks == [UUID(chained.inner), UUID(parts[0].inner)]
    assert states[3].id in states[0].successors


async def test_a_step_waits_for_a_group(queue: Both, worker: Make, room: str) -> None:
    """And tasks of a group wait for a step."""
    manager = worker()
    for one in (Measured, Area):
        manager.register(one, room=room)
    first = await queue.submit(Area(width=2))
    group = Both(await queue.group())
    await group.create()
    members = await group.map("Measured", [{"value": first.inner.output()}, {"value": 1}], after=first.inner)
    last = await queue.submit(Area(width=5), after=group.inner)
    assert (await last.refresh()).after.waits_for == [group.id]
    await group.seal()
    assert await last.result(60) == 5
    assert (await members[0].result(60))["value"] == 2


async def test_one_request_submits_a_graph(queue: Both, worker: Make, room: str) -> None:
    """Tasks without an id are named by themselves; all are submitted or none."""
    manager = worker()
    for one in (Measured, Total):
        manager.register(one, room=room)
    parts = [NewTask(Measured(value=number)) for number in range(3)]
    total = NewTask("Total", {"values": [part.output("/value") for part in parts]})
    last = NewTask(Measured(value=9), after=[total, parts[0]])
    handles = await queue.submit_many([*parts, total, last], atomic=True)
    assert await handles[3].result(60) == 3
    assert (await handles[4].result(60))["value"] == 9
    assert (await handles[4].refresh()).after.tasks == [UUID(handles[3].inner), UUID(handles[0].inner)]
    with pytest.raises(ValueError, match=r"tasks\.1: after: task 0 of the same call needs .*atomic=True"):
        await queue.submit_many([parts[0], NewTask("Total", after=parts[0])])
    with pytest.raises(ValueError, match="a NewTask has no id"):
        await queue.submit("Total", {"values": [total.output()]})
    with pytest.raises(InvalidRequest, match="after"):
        await queue.submit("Total", {"values": []}, after="00000000-0000-4000-8000-000000000000")


async def test_a_step_after_a_failure(queue: Both, worker: Make, room: str) -> None:
    """It fails with a code, runs all the same, or is held until the task is retried and completes."""
    manager = worker()
    for one in (Fail, Area):
        manager.register(one, room=room)
    failed = await queue.submit(Fail())
    fails = await queue.submit(Area(), after=failed.inner)
    runs = await queue.submit(Area(width=2), after={"tasks": [failed.inner], "on_failure": "run"})
    holds = await queue.submit(Area(), after=After(tasks=[failed.inner.id], on_failure="hold"))
    with pytest.raises(TaskFailed, match=str(failed.inner)) as caught:
        await fails.result(60)
    assert caught.value.code == "predecessor-failed"
    assert await runs.result(60) == 2
    needs = await queue.submit(
        "Area", {"width": failed.inner.output()}, after={"tasks": [failed.inner], "on_failure": "hold"}
    )

    async def are_held() -> bool:
        texts = [(await task.explain()).reasons[0].detail for task in (holds, needs)]
        return (
            "retry that, or run this task now, or cancel" in texts[0] and "retry that, or cancel" in texts[1]
        )

    await until(are_held)
    await needs.cancel()
    assert (await failed.cancel(tree=True)).status == TaskStatus.FAILED
    assert (await holds.wait(60)).status == TaskStatus.CANCELLED


@on_both
async def test_large_results_are_values(queue: Both, worker: Make, room: str) -> None:
    """The worker reads them before it calls the job: an array is an array, a part of JSON is that part."""
    manager = worker()
    for one in (Values, Kind, Measured):
        manager.register(one, room=room)
    array = await queue.submit(Values(large=True))
    long = await queue.submit(Measured(value=1, numbers=40_000))
    kinds = [
        await queue.submit("Kind", {"value": output})
        for output in (
            array.inner.output(),
            long.inner.output("/numbers"),
            [long.inner.output("/value"), long.inner.output("/numbers/39999")],
        )
    ]
    lost = await queue.submit("Kind", {"value": long.inner.output("/number")})
    assert [await kind.result(60) for kind in kinds] == [["ndarray", 131_072], ["list", 40_000], ["list", 2]]
    with pytest.raises(TaskFailed, match="/number") as caught:
        await lost.result(60)
    assert caught.value.code == "predecessor-result-invalid"
    assert numpy.array_equal(await array.result(60), numpy.arange(131_072.0))


class Lines(Extension):
    """Returns JSON Lines in a file whose name says JSON."""

    category: ClassVar[Category] = Category.ANALYSIS
    folder: Path

    def run(self, vis: Any, *, task: Any) -> Path:
        """Return the file."""
        path = self.folder / "lines.json"
        path.write_text('{"a": 1}\n{"a": 2}\n')
        return path


async def test_a_result_that_is_no_json_stops_no_worker(
    queue: Both, worker: Make, room: str, tmp_path: Path
) -> None:
    """The step fails, and the tasks that the worker claims with it run."""
    manager = worker()
    for one in (Lines, Kind, Area):
        manager.register(one, room=room)
    lines = await queue.submit(Lines(folder=tmp_path))
    broken = await queue.submit("Kind", {"value": lines.inner.output()})
    after = await queue.submit(Area(width=4), after={"tasks": [broken.inner], "on_failure": "run"})
    assert await after.result(60) == 4
    with pytest.raises(TaskFailed, match="no valid application/json") as caught:
        await broken.result(60)
    assert caught.value.code == "predecessor-result-invalid"


async def test_a_reference_to_the_result_of_another_task_stays(queue: Both, worker: Make, room: str) -> None:
    """Only a step gets results: a worker may read more than the user who has written the payload."""
    worker().register(Anything, room=room)
    secret = await queue.submit(Anything(value="secret"))
    other = await queue.submit(Anything(value="other"))
    reference = {"$result": {"task": str(secret.inner), "pointer": ""}, "id": str(secret.inner)}
    alone = await queue.submit(Anything(value=reference))
    step = await queue.submit(Anything(value=[reference, 1]), after=other.inner)
    assert await secret.result(60) == "secret"
    assert await alone.result(60) == reference
    assert await step.result(60) == [reference, 1]


NEEDS = {"gpu": "a100"}


class OlderServer(Proxy):
    """The server as an earlier release answers, which does not know tasks that wait for others."""

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Return the response to a request without what that release ignores."""
        if any(b'"%b":' % name in body for name in (b"after", b"requires", b"cost")):
            request = json.loads(body)
            for task in (request, *request.get("tasks", [])):
                for option in ("after", "requires", "cost"):
                    task.pop(option, None)
            body = json.dumps(request).encode()
        return super().respond(method, path.partition("?successor=")[0], headers, body)


async def test_an_older_server_runs_no_step_too_early(
    queue: Both, open_queue: Callable[..., Both], server: LiveServer, worker: Make, room: str
) -> None:
    """What it has put into its queue is cancelled, and the error names it; a worker reads nothing for it."""
    manager = worker()
    manager.register(Anything, room=room, without_workers="queue")
    first = await queue.submit(Anything(value="secret"))
    await first.result(60)
    with OlderServer(server.url) as older:
        client = open_queue(older.url, room=room)
        steps = [NewTask(Anything(value=1), after=first.inner), NewTask(Anything(value=2))]
        narrow = [Anything(value=2), NewTask(Anything(value=1), requires=NEEDS)]
        calls = {
            lambda: client.submit(Anything(value=3), after=first.inner): AfterIgnored,
            lambda: client.submit_many(steps): AfterIgnored,
            lambda: client.submit_many([Anything(value=0), *steps], atomic=True): AfterIgnored,
            lambda: client.submit(Anything(value=4), requires=NEEDS): RequirementsIgnored,
            lambda: client.submit_many(narrow): RequirementsIgnored,
            lambda: client.submit(Anything(value=5), cost=2): CostIgnored,
            lambda: client.submit_many([NewTask(Anything(value=1), cost=2)]): CostIgnored,
        }
        manager.disconnect()
        for call, error in calls.items():
            with pytest.raises(error, match="Update the server") as caught:
                await call()
            [task_id] = caught.value.task_ids
            assert not caught.value.running_ids
            assert (await Both(queue.inner.task(task_id)).refresh()).status == TaskStatus.CANCELLED
        assert (await client.submit(Anything(value="plain"))).duplicate is False
        with connect(older.url, TOKEN) as api:
            reference = {"$result": {"task": str(first.inner), "pointer": ""}, "id": str(first.inner)}
            other = await queue.submit(Anything(value=reference))
            later = JobManager(api, execute=lambda task: task.extension.run(None, task=task))
            later.register(Anything, room=room)
            assert await other.result(60) == reference
            later.disconnect(timeout=1)


async def test_a_job_submits_steps(queue: Both, worker: Make, room: str) -> None:
    """A coroutine submits children and waits for none; the last of them gets the results of the others."""
    manager = worker()
    for one in (Measured, Total, children):
        manager.register(one, room=room)
    task = await queue.submit(children.task(size=4))
    last = Both(queue.inner.task(await task.result(60)))
    assert await last.result(60) == 6
    assert (await last.refresh()).parent == UUID(task.inner)
