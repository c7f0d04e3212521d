"""Requests whose answer is lost: the SDK repeats them with the same key, and the server applies them once."""

import threading
from collections.abc import Callable, Iterator
from uuid import UUID

import httpx
import pytest

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.providers import Echo
from sdk.proxy import Proxy, raw
from zndraw_joblib.cli.client import AdminClient, CommandRule
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.retry import RetryRule, UnexpectedResponse
from zndraw_joblib.wire.messages import JobRegisterRequest
from zndraw_joblib.wire.problems import IdempotencyKeyReused
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

Make = Callable[..., JobManager]
LOST = b""


class LossyProxy(Proxy):
    """A proxy that loses the first answer to each kind of request: to the client its connection is closed.

    `keys` has the header `Idempotency-Key` of each request that reached the server, `lost` their number.
    """

    instead = LOST

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.keys: list[tuple[str, str]] = []
        self._known: set[tuple[str, str]] = set()

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Send the request on; return nothing for the first one with a key of its kind."""
        response = super().respond(method, path, headers, body)
        key = headers.get("Idempotency-Key")
        if key is None:
            return response
        self.keys.append((f"{method} {path}", key))
        if (method, path) in self._known:
            return response
        self._known.add((method, path))
        return self.instead


@pytest.fixture
def proxy(server: LiveServer) -> Iterator[LossyProxy]:
    """Return a proxy of the common server that loses answers."""
    with LossyProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def lossy_api(proxy: LossyProxy) -> Iterator[Connection]:
    """Return a connection through the proxy that loses answers."""
    with connect(proxy.url, TOKEN) as connection:
        yield connection


def tasks_in(api: Connection, room: str) -> int:
    """Return the number of tasks of a room."""
    return JobClient(RestApi(api)).tasks(room).total


def worker_ids(api: Connection) -> set[UUID]:
    """Return the ids of all workers. Those of other tests may leave at any time."""
    page = JobClient(RestApi(api)).workers(limit=500)
    assert page.total == len(page.items)
    return {worker.id for worker in page.items}


GATEWAY = {
    "connection-lost": LOST,
    "502": raw("502 Bad Gateway", b"<html>bad gateway</html>"),
    "504": raw("504 Gateway Timeout", b"<html>gateway timeout</html>"),
    "200-page": raw("200 OK", b"<html>sign in</html>"),
}


@pytest.mark.parametrize("instead", GATEWAY.values(), ids=list(GATEWAY))
def test_a_submit_whose_answer_is_lost_adds_one_task(
    worker: Make, room: str, api: Connection, proxy: LossyProxy, lossy_api: Connection, instead: bytes
) -> None:
    """The repeat has the same key, and returns the id of the task that the first request added."""
    worker().register(Add, room=room)
    proxy.instead = instead
    task_id = JobClient(RestApi(lossy_api)).submit(f"{room}:modifiers:Add", {"a": 1})
    assert [key for _, key in proxy.keys] == [proxy.keys[0][1]] * 2
    assert tasks_in(api, room) == 1
    assert JobClient(RestApi(api)).get_task(task_id).payload == {"a": 1}


def test_each_submit_has_a_key_of_its_own(worker: Make, room: str, api: Connection) -> None:
    """Equal submits are different tasks, unless the caller gives them the same key."""
    client = worker()
    client.register(Add, room=room)
    ids = [client.submit(Add(), room=room) for _ in range(2)]
    same = [client.submit(Add(), room=room, idempotency_key='"a" key') for _ in range(2)]
    assert len({*ids, *same}) == 3
    with pytest.raises(IdempotencyKeyReused):
        client.submit(Add(), room=room, idempotency_key='"a" key', priority=1)
    with pytest.raises(ValueError, match="Idempotency-Key"):
        client.submit(Add(), room=room, idempotency_key="é")
    assert tasks_in(api, room) == 3


def test_registrations_whose_answer_is_lost_create_one_worker(
    worker: Make, room: str, proxy: LossyProxy, lossy_api: Connection, server: LiveServer
) -> None:
    """A worker, a job and a provider are each registered once."""
    before = worker_ids(lossy_api)
    managers = with_job, with_provider, alone = [worker(at=lossy_api) for _ in range(3)]
    with_job.register(Add, room=room)
    with_provider.register_provider(Echo, name="echo", handler=None, room=room)
    alone.create_worker()
    kinds = [kind.partition("?")[0] for kind, _ in proxy.keys]
    assert sorted(set(kinds)) == sorted(
        [
            f"PUT /v1/joblib/rooms/{room}/jobs",
            f"PUT /v1/joblib/rooms/{room}/providers",
            "POST /v1/joblib/workers",
        ]
    )
    assert len(proxy.keys) == 2 * len(set(proxy.keys)) == 6
    assert worker_ids(lossy_api) - before == {manager.worker_id for manager in managers}


def test_a_retry_whose_answer_is_lost_is_applied_once(
    worker: Make, room: str, api: Connection, proxy: LossyProxy, lossy_api: Connection
) -> None:
    """A repeated retry does not queue the task again that was claimed meanwhile."""
    manager = worker()
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    task = manager.claim(wait=10)
    assert task is not None
    manager.start(task)
    manager.fail(task, "no luck")
    assert JobClient(RestApi(lossy_api)).retry(task_id).status == TaskStatus.PENDING
    assert len(proxy.keys) == 2
    statuses = [change.status for change in manager.history(task_id).transitions]
    assert statuses.count(TaskStatus.PENDING) == 2


def test_a_submit_survives_a_restart_of_the_server(own_server: Callable[..., LiveServer]) -> None:
    """While the server is down connections are refused; the submit is sent once it is back."""
    server = own_server()
    with server.connect() as api:
        RestApi(api).register("lab", JobRegisterRequest(category="modifiers", name="Add"))
        client = JobClient(RestApi(api))
        server.stop()
        is_refused = threading.Event()
        restart = threading.Thread(target=lambda: (is_refused.wait(30), server.start()))
        restart.start()
        api.http.event_hooks["request"].append(lambda _: is_refused.set())
        try:
            task_id = client.submit("lab:modifiers:Add", {})
        finally:
            restart.join(30)
        assert client.get_task(task_id).status == TaskStatus.PENDING
        assert client.tasks("lab").total == 1


def test_a_submit_that_stays_in_doubt_names_its_key(worker: Make, room: str, server: LiveServer) -> None:
    """After the last attempt the error has a note with the key, with which a repeat is safe."""
    worker().register(Add, room=room)
    page = raw("502 Bad Gateway", b"bad gateway")
    with (
        Proxy(server.url, lambda method, _: page if method == "POST" else None) as proxy,
        connect(proxy.url, TOKEN) as api,
        pytest.raises(UnexpectedResponse, match="502") as caught,
    ):
        JobClient(RestApi(api), RetryRule(0.5)).submit(f"{room}:modifiers:Add", {}, idempotency_key="my-key")
    assert "idempotency_key='my-key'" in caught.value.__notes__[0]


def time_out(api: Connection, held: int) -> list[str]:
    """Let the first `held` requests with a key time out after 0.6 s; return the keys of all of them."""
    keys: list[str] = []

    def wait(response: httpx.Response) -> None:
        if key := response.request.headers.get("Idempotency-Key"):
            keys.append(key)
            if len(keys) <= held:
                threading.Event().wait(0.6)
                raise httpx.ReadTimeout("timed out", request=response.request)

    api.http.event_hooks["response"].append(wait)
    return keys


@pytest.mark.parametrize(("kind", "rule"), [(JobClient, RetryRule(0.5)), (AdminClient, CommandRule(0.5))])
@pytest.mark.parametrize("held", [1, 2])
def test_a_timeout_longer_than_the_retry_time_is_repeated_once(
    worker: Make, room: str, server: LiveServer, kind: type[JobClient], rule: RetryRule, held: int
) -> None:
    """A submit whose answer did not come is sent again; if that is not answered either, the key is named."""
    worker().register(Add, room=room)
    with server.connect() as api:
        keys = time_out(api, held)
        client = kind(RestApi(api), rule)
        if held == 1:
            client.submit(f"{room}:modifiers:Add", {"a": 1}, idempotency_key=f"key-{room}")
        else:
            with pytest.raises(httpx.ReadTimeout) as caught:
                client.submit(f"{room}:modifiers:Add", {"a": 1}, idempotency_key=f"key-{room}")
            assert f"key-{room}" in caught.value.__notes__[0]
        assert len(keys) == 2
        assert tasks_in(api, room) == 1


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "423 Locked"])
def test_a_refusal_of_the_host_ends_within_seconds(
    worker: Make, room: str, server: LiveServer, caplog: pytest.LogCaptureFixture, status: str
) -> None:
    """A wrong token is repeated a few times, with a warning; the error says what to check."""
    refused = raw(status, b'{"detail": "Not authenticated"}', "application/json")
    with Proxy(server.url, lambda method, path: refused) as proxy, connect(proxy.url, TOKEN) as api:
        calls: list[Callable[[], object]] = [
            lambda: JobClient(RestApi(api)).submit(f"{room}:modifiers:Add", {}),
            lambda: worker(at=api).register(Add, room=room),
        ]
        for call in calls:
            proxy.answered.clear()
            caplog.clear()
            with pytest.raises(UnexpectedResponse, match="token or the permissions") as caught:
                call()
            assert proxy.answered.total() == 4
            assert "Not authenticated" in caplog.text
            assert not hasattr(caught.value, "__notes__")


def test_a_refused_submit_is_not_repeated(api: Connection, room: str) -> None:
    """A problem of the server, such as an unknown job, is raised at once."""
    sent: list[httpx.Request] = []
    api.http.event_hooks["request"].append(sent.append)
    with pytest.raises(KeyError):
        JobClient(RestApi(api)).submit(f"{room}:modifiers:Nope", {})
    assert [request.method for request in sent] == ["POST", "GET"], "the error names the jobs that exist"


def test_a_value_that_cannot_be_encoded_is_named(api: Connection, room: str) -> None:
    """A payload with an object without a codec is a ValueError that names the field."""
    with pytest.raises(ValueError, match=r"payload\.a\[1\]\.b: an object of object cannot be encoded"):
        JobClient(RestApi(api)).submit(f"{room}:modifiers:Add", {"a": [0, {"b": object()}]})


def test_an_infinite_number_is_named(api: Connection, room: str, subtests: pytest.Subtests) -> None:
    """An option that is a number which JSON does not have is a ValueError that names the option."""
    for value in (float("inf"), float("nan"), -float("inf")):
        with subtests.test(value=value), pytest.raises(ValueError, match="delay_seconds"):
            JobClient(RestApi(api)).submit(f"{room}:modifiers:Add", {}, delay_seconds=value)
