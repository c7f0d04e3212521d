"""Policies of jobs and options of tasks: exactly the given fields are sent."""

import json
import queue
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add, Picky
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy
from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.older_servers import PolicyIgnored
from zndraw_joblib.client.queue import TaskHandle
from zndraw_joblib.jobs.extensions import NonRetryable, PolicyOptions, Retry
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.policy import Backoff, JobPolicy, RetryOn
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import Executor, JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]
Sent = list[tuple[str, str, dict[str, Any]]]
AT_ONCE = Backoff(base_seconds=0)


@pytest.fixture
def sent(api: Connection) -> Iterator[Sent]:
    """Record what is sent to the server: method, path, body."""
    sent: Sent = []

    def record(request: httpx.Request) -> None:
        sent.append((request.method, request.url.path, json.loads(request.content or b"{}")))

    api.http.event_hooks["request"].append(record)
    yield sent
    api.http.event_hooks["request"].remove(record)


def registrations(sent: Sent) -> list[dict[str, Any]]:
    """Return the policy fields of the recorded registrations."""
    fixed = {"category", "name", "schema", "worker_id", "worker", "batch"}
    return [
        {key: value for key, value in body.items() if key not in fixed}
        for method, _, body in sent
        if method == "PUT"
    ]


def job(api: Connection, room: str) -> JobResponse:
    """Return the registered job of a room."""
    return RestApi(api).send(ops.GET_JOB, room_id=room, name=f"{room}:modifiers:Add")


class Careful(Add):
    """Sets a policy of its own."""

    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=4, retry_on=(RetryOn.ERROR,))


def test_the_policy_of_a_class_is_sent(worker: Make, room: str, sent: Sent) -> None:
    """The fields that it sets, unless the registration sets them."""
    manager = worker()
    manager.register(Careful, room=room)
    manager.register(Careful, room=f"{room}-2", max_attempts=2, timeout_seconds=5)
    assert registrations(sent) == [
        {"max_attempts": 4, "retry_on": ["error"]},
        {"max_attempts": 2, "retry_on": ["error"], "timeout_seconds": 5},
    ]


def test_each_option_of_a_policy_is_a_keyword() -> None:
    """`register(…)` takes what a policy has, except a batch, which belongs to the code, and nothing else."""
    assert PolicyOptions.__annotations__.keys() == JobPolicy.model_fields.keys() - {"batch"}


def test_only_given_fields_are_sent(worker: Make, room: str, sent: Sent, api: Connection) -> None:
    """A worker without policy options keeps the policy that another one registered."""
    options: dict[str, Any] = {
        "max_attempts": 5,
        "retry_on": {RetryOn.ERROR, "timeout"},
        "backoff": Backoff(base_seconds=0.5),
        "timeout_seconds": None,
        "priority": 7,
    }
    worker().register(Add, room=room, **options)
    other = worker()

    @other.register(room=room)
    class Plain(Add):
        pass

    other.register(Add, room=room)
    first, *others = registrations(sent)
    assert first == options | {"retry_on": ["error", "timeout"], "backoff": {"base_seconds": 0.5}}
    assert others == [{}, {}]
    kept = job(api, room)
    assert (kept.max_attempts, kept.priority, kept.backoff) == (5, 7, Backoff(base_seconds=0.5))
    assert (kept.retry_on, kept.max_crashes) == ((RetryOn.ERROR, RetryOn.TIMEOUT), 3)


def test_a_removed_worker_registers_its_policy_again(
    worker: Make, room: str, sent: Sent, api: Connection
) -> None:
    """The policy and max_tasks are part of the new registration."""
    manager = worker(heartbeat_interval=60, max_tasks=3)

    @manager.register(room=room, max_attempts=4)
    class Add2(Add):
        pass

    RestApi(api).remove_worker(manager.worker_id, 60)
    manager.heartbeat()
    assert registrations(sent) == [{"max_attempts": 4, "max_tasks": 3}] * 2
    manager.heartbeat()
    assert [body["max_tasks"] for method, _, body in sent if method == "PATCH"][-1] == 3


def test_an_invalid_policy_raises_at_once(worker: Make, room: str, sent: Sent) -> None:
    """Before a request is sent, naming the field."""
    manager = worker()
    with pytest.raises(TypeError, match="'max_atempts'"):
        manager.register(Add, room=room, max_atempts=5)
    for field, value in {"max_attempts": 0, "retry_on": "error", "timeout_seconds": -1}.items():
        with pytest.raises(ValueError, match=rf"^{field}: .*{value!r}"):
            manager.register(room=room, **{field: value})
    with pytest.raises(ValueError, match=r"^max_tasks: "):
        worker(max_tasks=0)
    assert sent == []


def test_submit_sends_only_the_given_options(worker: Make, room: str, sent: Sent) -> None:
    """Each option is in the body only if it was given."""
    manager = worker()
    manager.register(Add, room=room)
    manager.submit(Add(), room=room)
    at = datetime.now(UTC) + timedelta(hours=1)
    later = manager.submit(Add(), room=room, run_at=at, priority=3, max_attempts=2, expires_in_seconds=60)
    soon = manager.submit(Add(), room=room, delay_seconds=0)
    bodies = [
        set(body) - {"payload"} for method, path, body in sent if "/tasks/" in path and method == "POST"
    ]
    assert bodies == [set(), {"run_at", "priority", "max_attempts", "expires_in_seconds"}, {"delay_seconds"}]
    task = manager.get_task(later)
    assert (task.run_at, task.priority) == (at, 3)
    assert task.expires_at is not None
    assert manager.get_task(soon).run_at is None


def test_invalid_submit_options_raise_at_once(worker: Make, room: str, sent: Sent) -> None:
    """Before a request is sent, naming the field."""
    manager = worker()
    now = datetime.now(UTC)
    with pytest.raises(ValueError, match=r"^priority: .*5000"):
        manager.submit(Add(), room=room, priority=5000)
    with pytest.raises(ValueError, match=r"^run_at: .*timezone"):
        manager.submit(Add(), room=room, run_at=now.replace(tzinfo=None))
    with pytest.raises(ValueError, match=r"^give run_at or delay_seconds, not both"):
        manager.submit(Add(), room=room, run_at=now, delay_seconds=1)
    assert sent == []


def test_a_failed_task_is_retried(worker: Make, room: str) -> None:
    """By the policy of its job, until it succeeds."""

    def execute(task: ClaimedTask) -> int:
        if task.attempt < 3:
            raise ConnectionError("not yet")
        return task.attempt

    manager = worker(execute)
    manager.register(Add, room=room, max_attempts=5, retry_on=["error"], backoff=AT_ONCE)
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 3


@pytest.mark.parametrize("form", ["exception", "argument"])
def test_a_final_failure_is_not_retried(worker: Make, room: str, form: str) -> None:
    """`NonRetryable`, or a failure with retry=False, ends the task whatever the policy is."""

    def execute(task: ClaimedTask) -> None:
        raise NonRetryable("no such file")

    manager = worker(execute if form == "exception" else None)
    manager.register(Add, room=room, max_attempts=5, retry_on=["error"], backoff=AT_ONCE)
    task_id = manager.submit(Add(), room=room)
    if form == "argument":
        task = manager.claim(5)
        assert task is not None
        manager.start(task)
        manager.fail(task, NonRetryable("no such file"), retry=False)
    failed = manager.wait_for(task_id, 30)
    assert (failed.status, failed.attempt, failed.error) == (
        TaskStatus.FAILED,
        1,
        "NonRetryable: no such file",
    )


class Missing(KeyError):
    """An exception of a job."""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_job_asks_for_a_retry_or_for_none(
    worker: Make, api: Connection, room: str, executor: Executor
) -> None:
    """`Retry` sets the pause and counts as a failed attempt; an exception of the policy is final."""
    names = [LookupError, "Busy"]
    manager = worker(raise_as_asked, executor=executor)
    manager.register(Add, room=room, max_attempts=2, non_retryable=names, retry_on=["error"])
    assert job(api, room).non_retryable == ("Busy", "LookupError")
    again = manager.wait_for(manager.submit(Add(a=1), room=room), 30)
    assert (again.status, again.attempt, again.error) == (TaskStatus.FAILED, 2, "Retry: the server is busy")
    final = manager.wait_for(manager.submit(Add(a=2), room=room), 30)
    assert (final.status, final.attempt, final.error) == (TaskStatus.FAILED, 1, "Missing: 'atom'")


def raise_as_asked(task: ClaimedTask) -> None:
    """Raise by the payload of the task."""
    if task.extension.a == 1:
        raise Retry(0.01, "the server is busy")
    raise Missing("atom")


def test_the_pause_of_a_retry_is_bounded() -> None:
    """Its text names the pause unless there is a reason; a copy, as in another process, is the same."""
    assert str(Retry(30)) == "after 30 s"
    copied = copy(Retry(2.5, "busy"))
    assert (copied.after_seconds, str(copied)) == (2.5, "busy")
    for seconds in (-1, float("nan"), 1e9):
        with pytest.raises(ValueError, match=r"^Retry: after_seconds is .* between 0 and 31536000"):
            Retry(seconds)


@pytest.mark.parametrize("name", ["", "two words", "x" * 257])
def test_a_policy_with_a_wrong_name_of_an_exception_is_refused(name: str) -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match="non_retryable"):
        JobPolicy(non_retryable=(name,))


def test_an_invalid_payload_is_not_retried(worker: Make, room: str) -> None:
    """The payload would be invalid again."""
    manager = worker(lambda task: None)
    manager.register(Picky, room=room, max_attempts=5, retry_on=["error"], backoff=AT_ONCE)
    failed = manager.wait_for(manager.submit(f"{room}:analysis:Picky", {"word": "bad"}), 30)
    assert (failed.status, failed.attempt) == (TaskStatus.FAILED, 1)


def test_max_tasks_limits_the_held_tasks(worker: Make, room: str) -> None:
    """The second task comes when the first one has ended."""
    manager = worker(max_tasks=1)
    manager.register(Add, room=room)
    for _ in range(2):
        manager.submit(Add(), room=room)
    task = manager.claim(5)
    assert task is not None
    assert manager.claim() is None
    manager.start(task)
    manager.complete(task)
    assert manager.claim(5) is not None


def test_release_history_explain_and_retry(worker: Make, room: str) -> None:
    """A released task is claimed again; its history and reasons can be read; a failed task can be retried."""
    manager = worker()
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    first = manager.claim(5)
    assert first is not None
    assert manager.release(first).status == TaskStatus.PENDING
    assert manager.held_tasks == []
    assert {reason.code for reason in manager.explain(task_id).reasons} == {"queued"}
    assert manager.release(first).attempt == 1  # repeated, as after a lost response
    second = manager.claim(5)
    assert second is not None
    assert (second.task_id, second.attempt) == (task_id, 2)
    with pytest.raises(ValueError, match="taken"):
        manager.release(first)
    manager.fail(second, "no")
    assert manager.retry(task_id).status == TaskStatus.PENDING
    statuses = [step.status for step in manager.history(task_id).transitions]
    assert statuses == ["pending", "claimed", "pending", "claimed", "failed", "pending"]


def test_a_released_attempt_is_dropped(
    worker: Make, room: str, api: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator released it while it ran: its late report is refused, logged once, and the worker
    continues.
    """
    caplog.set_level("INFO")

    def execute(task: ClaimedTask) -> int:
        if task.attempt == 1:
            RestApi(api).send_call(calls.act_on_task(ops.RELEASE_TASK, task.task_id))
        return task.attempt

    manager = worker(execute, heartbeat_interval=60)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    assert manager.wait_for(task_id, 30).result == 2
    refusals = [
        record for record in caplog.records if "is no longer held by this worker" in record.getMessage()
    ]
    assert [(record.levelname, task_id in record.getMessage()) for record in refusals] == [("INFO", True)]


def test_a_cancelled_task_is_logged_in_one_line(
    worker: Make, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker's late report is refused, which is no fault: the log states that the task was cancelled."""
    caplog.set_level("INFO")

    submitted: queue.Queue[TaskHandle] = queue.Queue()

    def execute(task: ClaimedTask) -> int:
        submitted.get(timeout=30).cancel()
        return 1

    manager = worker(execute, heartbeat_interval=60)
    manager.register(Add, room=room)
    handle = manager.submit(Add(), room=room)
    submitted.put(handle)
    wait_until(lambda: f"Task {handle} was cancelled" in caplog.text)
    manager.disconnect()
    reporter = [record for record in caplog.records if record.name == "zndraw_joblib.worker.reporter"]
    assert [(record.levelname, record.getMessage()) for record in reporter] == [
        ("INFO", f"Task {handle} was cancelled")
    ]


class OlderServer(Proxy):
    """The server as an earlier release answers, which does not know `requires`."""

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Return the response to a request without what that release ignores."""
        response = super().respond(method, path, headers, body.replace(b'"requires":', b'"unknown":'))
        return response.replace(b'"requires":', b'"somewhat":')


def test_an_older_server_gets_no_policy_with_requirements(
    server: LiveServer, worker: Make, room: str, api: Connection
) -> None:
    """Its workers without these labels would get the tasks, so the worker leaves the job."""
    with OlderServer(server.url) as older, connect(older.url, TOKEN) as connection:
        manager = worker(at=connection)
        with pytest.raises(PolicyIgnored, match=rf"ignores it: .* tasks of {room}:modifiers:Add"):
            manager.register(Add, room=room, requires={"gpu": "a100"})
        assert not manager.registry
        manager.register(Picky, room=room)
        jobs = JobClient(RestApi(api)).jobs(room).items
        assert [job.full_name for job in jobs if job.workers] == [f"{room}:analysis:Picky"]
        manager.disconnect()


def test_a_policy_with_an_unknown_field_is_refused() -> None:
    """In a program; the error names the nearest field. A body of a request ignores it, as for 0.1.7."""
    wrong: dict[str, Any] = {"backoff_seconds": 2, "max_atempts": 9}
    text = r"'backoff_seconds' \(did you mean 'backoff'\?\); 'max_atempts' \(did you mean 'max_attempts'\?\)"
    with pytest.raises(TypeError, match=f"JobPolicy has no {text}"):
        JobPolicy(**wrong)
    with pytest.raises(TypeError, match=r"Backoff has no 'base_secnds' \(did you mean 'base_seconds'\?\)"):
        JobPolicy(backoff={"base_secnds": 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Backoff has no 'pause'. It has base_seconds, factor"):
        Backoff(pause=1)  # type: ignore[call-arg]
    assert JobPolicy.model_validate({**wrong, "max_attempts": 2}) == JobPolicy(max_attempts=2)


def test_a_setting_with_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a host passes it; a variable of the environment may belong to another release."""
    monkeypatch.setenv("ZNDRAW_JOBLIB_OTHER", "1")
    with pytest.raises(TypeError, match=r"'worker_timeout' \(did you mean 'worker_timeout_seconds'\?\)"):
        JobLibSettings(worker_timeout=5)  # type: ignore[call-arg]
    assert JobLibSettings(sweep_interval_seconds=5, _env_prefix="OTHER_").sweeper_interval_seconds == 5
