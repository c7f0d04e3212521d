"""`submit_many`: each task gets its id or its problem, and is submitted once."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from databases import only_sqlite  # noqa: F401 - a fixture, found by its name
from rest import V1
from servers import ServerProcess

from sdk.jobs import Add
from sdk.proxy import Proxy, raw
from zndraw_joblib import NewTask, connect
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.retry import RetryRule, UnexpectedResponse
from zndraw_joblib.client.submits import chunks, task_body
from zndraw_joblib.wire.problems import InvalidIdempotencyKey, InvalidPayload, JobNotFound
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

ADD = "@global:modifiers:Add"
SUBMIT = f"{V1}/tasks/submit"


@pytest.fixture
def server(database_url: str) -> Iterator[ServerProcess]:
    """Return a server in a process of its own, on either database."""
    with ServerProcess(database_url) as server:
        yield server


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Connection]:
    """Return a connection to the server, with the job `Add` registered."""
    with connect(server.url, str(server.token)) as api, JobManager(api) as manager:
        manager.register(Add)
        yield api


def test_a_duplicate_in_a_batch_is_marked(api: Connection) -> None:
    """Its handle is that of the task which holds the key."""
    client = JobClient(RestApi(api))
    tasks = [NewTask(ADD, {"a": a}, unique={"key": key}) for a, key in ((1, "one"), (2, "one"), (3, "three"))]
    first, again, third = client.submit_many(tasks, room="lab", atomic=True)
    assert (first, again.duplicate) == (again, True)
    assert (first.duplicate, third.duplicate) == (False, False)


def test_each_task_gets_its_id_or_its_problem(api: Connection) -> None:
    """In order: a refused task spoils no other one; rooms, jobs and options may differ."""
    client = JobClient(RestApi(api))
    tasks = [
        Add(a=1),
        NewTask(ADD, {"a": "one"}),
        NewTask(ADD, {"a": 2}, room="other", priority=7),
        NewTask("@global:modifiers:Unknown"),
        NewTask(Add(a=3), delay_seconds=60),
    ]
    first, invalid, other, unknown, later = client.submit_many(tasks, room="lab")
    assert isinstance(invalid, InvalidPayload)
    assert "payload/a" in str(invalid)
    assert isinstance(unknown, JobNotFound)
    made = [client.get_task(task_id) for task_id in (first, other, later) if isinstance(task_id, str)]
    assert [(task.room_id, task.payload["a"], task.run_at is None) for task in made] == [
        ("lab", 1, True),
        ("other", 2, True),
        ("lab", 3, False),
    ]
    assert made[1].priority == 7
    assert client.submit_many([]) == []


def test_an_atomic_call_submits_all_or_none(api: Connection) -> None:
    """The problem of the first refused task is raised."""
    client = JobClient(RestApi(api))
    with pytest.raises(InvalidPayload, match=r"tasks\.1: payload/a"):
        client.submit_many([Add(a=1), NewTask(ADD, {"a": "one"})], room="lab", atomic=True)
    assert client.tasks("lab").total == 0
    ids = client.submit_many([Add(a=1), Add(a=2)], room="lab", atomic=True)
    assert [client.get_task(task_id).payload["a"] for task_id in ids] == [1, 2]
    with pytest.raises(ValueError, match="1,001 tasks"):
        client.submit_many([Add()] * 1001, atomic=True)


@pytest.mark.parametrize(
    ("task", "error", "text"),
    [
        (NewTask(ADD, {}, priority=2000), ValueError, r"tasks\.1: priority: .*2000"),
        (NewTask(ADD, {"a": object()}), ValueError, r"tasks\.1: payload\.a: an object of object cannot be"),
        (NewTask("Nope", {}), ValueError, r"tasks\.1: Room 'lab' sees no job 'Nope'"),
        (NewTask(ADD, {"a": "x" * 9_000_000}), ValueError, r"tasks\.1: payload: .* bytes"),
        ({"a": 1}, TypeError, r"tasks\.1: {'a': 1} is no task"),
    ],
    ids=["option", "object", "job", "large", "type"],
)
def test_an_invalid_task_is_named_before_anything_is_sent(
    api: Connection, task: Any, error: type[Exception], text: str
) -> None:
    """The valid tasks before it are not submitted either."""
    client = JobClient(RestApi(api))
    with pytest.raises(error, match=text):
        client.submit_many([Add(a=1), task], room="lab")
    assert client.tasks("lab").total == 0


def test_many_tasks_are_sent_in_several_requests(api: Connection) -> None:
    """A request has at most 1,000 tasks; with the same key, a repeat submits nothing again."""
    client = JobClient(RestApi(api))
    sent: list[int] = []

    def record(request: httpx.Request) -> None:
        if "/workers/" not in request.url.path:  # a heartbeat
            sent.append(len(request.content))

    api.http.event_hooks["request"].append(record)
    tasks = [Add(a=number) for number in range(2_100)]
    first, again = [client.submit_many(tasks, room="lab", idempotency_key="nightly") for _ in range(2)]
    assert len(sent) == 1 + 6, "the job is looked up once"
    assert first == again
    assert len(set(map(str, first))) == 2_100
    assert client.tasks("lab").total == 2_100
    newest = client.tasks("lab", limit=3).items
    assert [task.payload["a"] for task in newest] == [2_099, 2_098, 2_097]
    with pytest.raises(InvalidIdempotencyKey):
        client.submit_many(tasks[:1], idempotency_key="")


def test_a_request_stays_below_a_megabyte() -> None:
    """Proxies refuse larger ones; a task that is larger alone has a request of its own."""
    small, large = task_body("lab", ADD, {"text": "x" * 300_000}, {}), b"x" * 3_000_000
    made = list(chunks([small] * 5 + [large, small]))
    assert [chunk.tasks for chunk in made] == [3, 2, 1, 1]
    assert [len(chunk.body) < 1_000_100 for chunk in made] == [True, True, False, True]


def test_lost_responses_and_busy_servers_are_repeated(api: Connection, server: ServerProcess) -> None:
    """The response to the first request is lost, and the next one has a task that the server had no time for.

    The client repeats the request with the same key, and each task is submitted once.
    """
    busy = {"type": "/v1/problems/service-unavailable", "title": "Service Unavailable", "status": 503}
    body = httpx.Response(200, json={"results": [{"status": 503, "problem": busy}] * 2}).content
    answers = [raw("502 Bad Gateway", b"bad gateway"), raw("200 OK", body, "application/json")]

    class Lossy(Proxy):
        def respond(self, method: str, path: str, headers: dict[str, str], content: bytes) -> bytes:
            """Send the request on, and answer something else at first."""
            response = super().respond(method, path, headers, content)
            return answers.pop(0) if answers and path == SUBMIT else response

    with Lossy(server.url) as proxy, connect(proxy.url, str(server.token)) as lossy:
        client = JobClient(RestApi(lossy))
        ids = client.submit_many([Add(a=1), Add(a=2)], room="lab")
        assert answers == []
        assert [client.get_task(str(task_id)).payload["a"] for task_id in ids] == [1, 2]
        assert client.tasks("lab").total == 2


def test_an_error_in_between_names_the_key_to_continue_with(api: Connection, server: ServerProcess) -> None:
    """A repeated call with this key submits the missing tasks and returns all ids."""
    requests = iter(range(100))
    page = raw("502 Bad Gateway", b"bad gateway")

    def rule(method: str, _: str) -> bytes | None:
        return page if method == "POST" and next(requests) > 0 else None

    tasks = [Add(a=number) for number in range(1_500)]
    with (
        Proxy(server.url, rule) as proxy,
        connect(proxy.url, str(server.token)) as broken,
        pytest.raises(UnexpectedResponse, match="502") as caught,
    ):
        JobClient(RestApi(broken), RetryRule(0.3)).submit_many(tasks, room="lab", idempotency_key="night-7")
    assert any("1,000 tasks were sent before" in note for note in caught.value.__notes__)
    assert all("idempotency_key='night-7'" in note for note in caught.value.__notes__)
    client = JobClient(RestApi(api))
    ids = client.submit_many(tasks, room="lab", idempotency_key="night-7")
    assert len(set(map(str, ids))) == client.tasks("lab").total == 1_500
