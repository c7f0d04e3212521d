"""`TestQueue`, which tests without an event loop use, with Starlette's test client."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from testing.tested_jobs import Area, Flaky, Later, Length, Report, Summed
from zndraw_joblib import (
    After,
    Identity,
    InternalRegistry,
    InvalidPayload,
    JobLib,
    JobNotFound,
    Output,
    TaskResponse,
    TaskStatus,
    TaskStatusEvent,
    job,
)
from zndraw_joblib.testing import TestQueue

URL = "/v1/joblib/rooms/lab/tasks/@global:analysis:Area"


@pytest.fixture(params=["with-lifespan", "without-lifespan"])
def client(request: pytest.FixtureRequest, joblib_app: FastAPI) -> Iterator[TestClient]:
    """Return a test client; without a lifespan it runs each request in an event loop of its own."""
    client = TestClient(joblib_app)
    if request.param == "without-lifespan":
        yield client
        return
    with client:
        yield client


def test_a_submitted_task_is_found_and_run(client: TestClient, joblib_queue: TestQueue) -> None:
    """The host submits it over HTTP; `work` runs it in the test's thread; the host reads its result."""
    assert joblib_queue.register(Area) == ["@global:analysis:Area"]
    joblib_queue.refute_submitted(Area)
    submitted = client.post(URL, json={"payload": {"width": 3, "height": 2}})
    assert submitted.status_code == 202
    [task] = joblib_queue.assert_submitted(Area, room="lab", payload={"width": 3}, created_by="tester")
    assert (str(task.id), task.status) == (submitted.json()["id"], TaskStatus.PENDING)
    [ended] = joblib_queue.work(Area)
    assert (ended.id, ended.result) == (task.id, 6)
    assert joblib_queue.log(ended) == [f"in thread {threading.current_thread().name}"]
    read = client.get(f"/v1/joblib/tasks/{task.id}").json()
    assert (read["status"], read["result"]) == ("completed", 6)
    assert read["progress"] == {"current": 2, "total": 2, "unit": "sides", "message": "half", "data": None}
    assert joblib_queue.work() == []


def test_a_group_ends_in_a_test(client: TestClient, joblib_queue: TestQueue) -> None:
    """The task of its end runs with the results of the others."""
    joblib_queue.register(Area, Summed)
    payload = {"values": {"$group": "results"}, "counts": {"$group": "counts"}}
    group = joblib_queue.create_group("areas", on_end=Summed, payload=payload)
    for width in (2, 3):
        joblib_queue.submit(Area(width=width, height=2), group=group.id)
    assert joblib_queue.seal_group(group.id).ended_at is None
    *_, last = joblib_queue.work()
    ended = joblib_queue.get_group(group.id)
    assert (ended.on_end_task, ended.counts.completed) == (last.id, 2)
    assert last.result == [10, 2]


def test_a_test_sees_what_receivers_of_webhooks_get(client: TestClient, joblib_queue: TestQueue) -> None:
    """Those of a room and of a task, without a receiver."""
    joblib_queue.register(Area)
    webhook = {"url": "https://hooks.invalid/room", "events": ["task.completed"]}
    assert client.put("/v1/joblib/rooms/lab/webhooks/ci", json=webhook).status_code == 201
    body = {"payload": {"width": 3}, "webhook": {"url": "https://hooks.invalid/task"}}
    task = client.post(URL, json=body).json()
    assert joblib_queue.webhook_events("lab") == []
    joblib_queue.work()
    events = joblib_queue.webhook_events("lab")
    assert [(event["type"], event["data"]["id"]) for event in events] == [("task.completed", task["id"])] * 2
    assert len(joblib_queue.webhook_events("lab", "ci")) == 1


def test_events_are_those_of_the_commits(client: TestClient, joblib_queue: TestQueue) -> None:
    """They are recorded at the commit, in order, also without a Socket.IO server."""
    joblib_queue.register(Area)
    assert client.post(URL, json={"payload": {"width": 1}}).status_code == 202
    joblib_queue.work()
    statuses = [event.status for event, _ in joblib_queue.events if isinstance(event, TaskStatusEvent)]
    assert statuses == ["pending", "claimed", "running", "completed"]
    assert {room for event, room in joblib_queue.events if isinstance(event, TaskStatusEvent)} == {"room:lab"}


def test_an_expectation_that_fails_lists_what_was_submitted(joblib_queue: TestQueue) -> None:
    """So the author sees the difference at once."""
    joblib_queue.register(Area, Later)
    with pytest.raises(AssertionError, match=r"Area was submitted\. No task was submitted at all"):
        joblib_queue.assert_submitted(Area)
    joblib_queue.submit(Area(width=2), room="lab", user="ada")
    line = r"- @global:analysis:Area in room 'lab' by 'ada', pending: {\"width\": 2.0, \"height\": 1.0}"
    for wanted in ({"room": "other"}, {"payload": {"width": 3}}, {"payload": {"depth": 2}}, {"count": 2}):
        with pytest.raises(AssertionError, match="Submitted tasks:\n" + line):
            joblib_queue.assert_submitted(Area, **wanted)
    with pytest.raises(AssertionError, match="No task of analysis:Later was submitted"):
        joblib_queue.assert_submitted(Later)
    with pytest.raises(
        AssertionError, match="of @global:analysis:Area that were submitted: 1, expected none"
    ):
        joblib_queue.refute_submitted("@global:analysis:Area")
    joblib_queue.refute_submitted(Area, created_by="eva")
    joblib_queue.assert_submitted(Area, count=1)


def test_refused_submits_raise_the_problem(joblib_queue: TestQueue) -> None:
    """So do wrong arguments."""
    with pytest.raises(JobNotFound):
        joblib_queue.submit(Area(width=1))
    joblib_queue.register(Area, room="lab")
    with pytest.raises(InvalidPayload, match="payload/width"):
        joblib_queue.submit(Area, {"width": 0}, room="lab")
    with pytest.raises(TypeError, match="is no job"):
        joblib_queue.submit(3)
    with pytest.raises(ValueError, match="full name like"):
        joblib_queue.work("Area")
    with pytest.raises(ValueError, match="is not registered here"):
        joblib_queue.work("@global:analysis:Area")
    assert joblib_queue.tasks() == []


def test_a_retry_waits_for_the_clock(joblib_queue: TestQueue) -> None:
    """`work` returns a task once it has ended; `advance` makes its retry due."""
    joblib_queue.register(Flaky)
    task = joblib_queue.submit(Flaky())
    assert joblib_queue.work() == []
    [waiting] = joblib_queue.tasks()
    assert (waiting.status, waiting.error) == ("pending", "ValueError: attempt 1 fails")
    joblib_queue.advance(500)
    assert joblib_queue.work() == []
    joblib_queue.advance(101)
    [ended] = joblib_queue.work()
    assert (ended.id, ended.status, ended.result) == (task.id, "completed", 2)


def test_drain_waits_for_everything(joblib_queue: TestQueue) -> None:
    """It moves the clock to each time and each retry."""
    joblib_queue.register(Flaky, Later)
    retried = joblib_queue.submit(Flaky(failures=9))
    final = joblib_queue.submit(Flaky(is_final=True))
    delayed = joblib_queue.submit(Later(), delay_seconds=86_400)
    ended = {task.id: task for task in joblib_queue.drain(vis="context")}
    assert (ended[retried.id].error, ended[retried.id].attempt) == ("ValueError: attempt 3 fails", 3)
    assert (ended[final.id].error, ended[final.id].attempt) == ("NonRetryable: no use", 1)
    assert ended[delayed.id].result == "context"


def test_a_sweep_expires_silent_workers_of_others(client: TestClient, joblib_queue: TestQueue) -> None:
    """The workers of the test stay alive, and their jobs stay registered."""
    joblib_queue.register(Later)
    body = {"category": "analysis", "name": "Area"}
    worker_id = client.put("/v1/joblib/rooms/@global/jobs", json=body).json()["worker_id"]
    assert client.post(URL, json={"payload": {"width": 1}}).status_code == 202
    claim = client.post("/v1/joblib/tasks/claim", json={"worker_id": worker_id}).json()["task"]
    assert joblib_queue.sweep().expired == 0
    joblib_queue.advance(3600)
    assert joblib_queue.sweep().expired == 1
    task = client.get(f"/v1/joblib/tasks/{claim['id']}").json()
    assert (task["status"], task["error"]) == ("failed", "Worker disconnected")
    joblib_queue.submit(Later())
    assert [task.status for task in joblib_queue.work()] == ["completed"]


def test_a_file_becomes_a_stored_result(client: TestClient, joblib_queue: TestQueue, tmp_path: Path) -> None:
    """The host's own endpoint returns the bytes."""
    joblib_queue.register(Report)
    joblib_queue.submit(Report(text="all well"), room="lab")
    [task] = joblib_queue.work(vis=tmp_path)
    read = client.get(f"/v1/joblib/tasks/{task.id}/result")
    assert (read.text, read.headers["content-type"]) == ("all well", "text/plain")


def test_functions_on_end_are_called(
    client: TestClient, joblib_app: FastAPI, joblib_queue: TestQueue
) -> None:
    """Before `work` returns, also for tasks that the sweeper fails; what they submit runs too."""
    joblib, seen = joblib_app.state.joblib, []

    @joblib.on_end("follow-up")
    async def follow_up(task: TaskResponse) -> None:
        seen.append(task.status)
        if task.status == "completed" and len(seen) == 1:
            await joblib.submit(Later(), room="lab", on_end="follow-up")

    joblib_queue.register(Later)
    joblib_queue.submit(Later(), on_end="follow-up")
    assert [task.job_name for task in joblib_queue.work()] == 2 * ["@global:analysis:Later"]
    assert seen == ["completed", "completed"]
    joblib_queue.submit(Later(), on_end="follow-up", expires_in_seconds=60)
    joblib_queue.advance(61)
    assert joblib_queue.sweep().failed == 1
    assert seen[2:] == ["failed"]


@pytest.mark.parametrize("names_the_queue", [False, True])
def test_internal_jobs_run_as_in_a_server(
    joblib_app: FastAPI, client: TestClient, joblib_queue: TestQueue, names_the_queue: bool
) -> None:
    """Their tasks wait until the test runs them, also in a host that offers jobs in a queue that it names."""
    if names_the_queue:
        joblib_app.state.joblib.internal_registry = InternalRegistry({})
    assert joblib_queue.register(Area, room="@internal") == ["@internal:analysis:Area"]
    url = URL.replace("@global", "@internal")
    assert client.post(url, json={"payload": {"width": 4}}).status_code == 202
    assert joblib_queue.tasks()[0].status == "claimed"
    [task] = joblib_queue.work()
    assert (task.status, task.result) == ("completed", 4)


def test_a_task_that_was_cancelled_meanwhile_stays_cancelled(
    joblib_app: FastAPI, joblib_queue: TestQueue
) -> None:
    """The report of a run that lost its task is ignored, as a worker ignores it."""
    joblib_queue.register(Later)
    task = joblib_queue.submit(Later())

    class Canceller:
        def __str__(self) -> str:
            answer = TestClient(joblib_app).patch(f"/v1/joblib/tasks/{task.id}", json={"status": "cancelled"})
            return answer.json()["status"]

    [ended] = joblib_queue.work(vis=Canceller())
    assert (ended.status, ended.result) == ("cancelled", None)


def test_wrong_arguments_are_errors(joblib_queue: TestQueue) -> None:
    """Each names the argument."""
    with pytest.raises(ValueError, match="badly formed"):
        joblib_queue.log("no id")
    with pytest.raises(LookupError):
        joblib_queue.log(uuid4())
    with pytest.raises(ValueError, match="negative"):
        joblib_queue.advance(-1)


def test_an_app_without_a_queue_is_an_error() -> None:
    """The message says what the fixture has to return."""
    with pytest.raises(ValueError, match=r"mount\(app\)"):
        TestQueue(FastAPI())


async def test_a_coroutine_gets_the_name_of_the_other_fixture(joblib_queue: TestQueue) -> None:
    """A plain function cannot wait in a running event loop."""
    with pytest.raises(RuntimeError, match="async_joblib_queue"):
        joblib_queue.tasks()


def test_steps_run_one_after_the_other(joblib_queue: TestQueue) -> None:
    """A step gets the results of those before it; a held one waits until the other is retried."""
    joblib_queue.register(Area, Flaky, max_attempts=1)
    first = joblib_queue.submit(Area(width=3))
    total = joblib_queue.submit(Area(width=Output(first, ""), height=Output(first)), after=[first])
    flaky = joblib_queue.submit(Flaky(failures=1))
    held = joblib_queue.submit(Area(width=2), after=After(tasks=[flaky.id], on_failure="hold"))
    assert joblib_queue.work(Area)[-1].id == total.id
    assert joblib_queue.tasks(Area)[1].result == 9
    assert [task.id for task in joblib_queue.drain()] == [flaky.id]
    assert next(task for task in joblib_queue.tasks() if task.id == held.id).waits is True


def test_large_results_reach_later_steps(joblib_queue: TestQueue, tmp_path: Path) -> None:
    """In a worker and in the server alike; a part that does not exist fails the task."""
    joblib_queue.register(Report, Length)
    joblib_queue.register(Length, room="@internal")
    first = joblib_queue.submit(Report(text="x" * 100_000))
    jobs = [f"{room}:analysis:Length" for room in ("@global", "@internal")]
    whole = [joblib_queue.submit(job, {"value": Output(first)}) for job in jobs]
    parts = [joblib_queue.submit(job, {"value": Output(first, "/lost")}) for job in jobs]
    joblib_queue.work(vis=tmp_path)
    tasks = {task.id: task for task in joblib_queue.tasks()}
    assert [tasks[task.id].result for task in whole] == [["bytes", 100_000]] * 2
    assert [tasks[task.id].error_code for task in parts] == ["predecessor-result-invalid"] * 2
    assert "nothing at '/lost'" in str(tasks[parts[1].id].error)


@pytest.mark.parametrize("start", ["before", "after", "never"])
def test_the_apps_own_jobs_wait_for_the_test(joblib_database_url: str, start: str) -> None:
    """Those of `JobLib(jobs=…)`, if the lifespan begins before the queue of the test, after it or never."""
    app = app_with_jobs(joblib_database_url)
    with ExitStack() as stack:
        client = TestClient(app)
        if start == "before":
            stack.enter_context(client)
        queue = TestQueue(app)
        stack.callback(queue.close)
        if start == "after":
            stack.enter_context(client)
        elif start == "never":
            assert queue.register(double) == ["@internal:jobs:double"]
        task_id = client.post("/doubles?number=4").json()
        [submitted] = queue.assert_submitted(double, room="lab", payload={"number": 4})
        assert (str(submitted.id), submitted.started_at) == (task_id, None)
        [ended] = queue.work(double)
        assert (str(ended.id), ended.result, ended.job_name) == (task_id, 8, "@internal:jobs:double")
        assert [task.result for task in (queue.submit(double, {"number": 1}), *queue.work())] == [None, 2]
        if start != "never":
            queue.advance(25 * 3600)
            [task] = queue.work(nightly)
            assert (task.result, task.schedule) == (id(app.state.joblib.loop), "nightly")


def app_with_jobs(url: str) -> FastAPI:
    """Return an app that runs jobs itself, and submits tasks of one."""
    app, sessions = FastAPI(), async_sessionmaker(create_async_engine(url, poolclass=NullPool))
    tester = Identity("tester", is_superuser=True)
    joblib = JobLib(session_maker=sessions, identity=lambda: tester, jobs=[double, nightly])
    joblib.mount(app)

    @app.post("/doubles")
    async def submit(number: int) -> str:
        return str((await joblib.submit(double.task(number=number), room="lab")).id)

    return app


@job
def double(number: int) -> int:
    """Return the double."""
    return 2 * number


@job(schedule="0 3 * * *")
async def nightly() -> int:
    """Return the id of its loop."""
    return id(asyncio.get_running_loop())
