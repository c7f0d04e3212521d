"""Provider requests during lost responses, restarts, other workers, and a stop."""

import hashlib
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.providers import Call, Echo, Gate
from sdk.test_lost_responses import Lose, bad_gateway, lose_connection, lose_one_claim, time_out
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.client.job_client import ProviderResult
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.problems import ProviderFailed, ProviderNotFound
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

Make = Callable[..., JobManager]
Own = Callable[..., LiveServer]
SendRequest = Callable[..., Future[ProviderResult]]
REQUESTS = "zndraw_joblib.worker.provider_requests"


@pytest.fixture
def send_request(worker: Make, room: str) -> Iterator[SendRequest]:
    """Return a function that sends a request to the provider `one` in a thread."""
    with ThreadPoolExecutor(4) as pool:

        def send_request(manager: JobManager | None = None, **params: Any) -> Future[ProviderResult]:
            return pool.submit((manager or worker()).read_provider, f"{room}:calls:one", params)

        yield send_request


@pytest.mark.parametrize("lose", [lose_connection, time_out, bad_gateway])
def test_a_claim_is_repeated_with_its_id(worker: Make, room: str, server: LiveServer, lose: Lose) -> None:
    """No claimed request is lost, and the provider is called once."""
    seen: list[str] = []
    with server.connect() as api:
        ids = lose_one_claim(api, "request", lose)
        manager = worker(at=api)
        manager.register_provider(Call, name="one", handler=lambda word: seen.append(word) or b"1", room=room)
        for word in ("a", "b"):
            began = time.monotonic()
            assert manager.read_provider(f"{room}:calls:one", {"word": word}).content == b"1"
            assert time.monotonic() - began < 20
        manager.disconnect()
    assert seen == ["a", "b"]
    assert len(ids) == len(dict.fromkeys(ids)) + 1


def refuse_connection(request: httpx.Request) -> None:
    """Refuse the connection."""
    raise httpx.ConnectError("gone")


def last_part(message: httpx.Request | httpx.Response) -> str:
    """Return the last part of the requested URL."""
    sent_request = message if isinstance(message, httpx.Request) else message.request
    return sent_request.url.path.rpartition("/")[2]


LOSSES = [("request", refuse_connection), ("response", lose_connection), ("response", bad_gateway)]


@pytest.mark.parametrize(("hook", "lose"), LOSSES)
@pytest.mark.parametrize("kind", ["bytes", "stream"])
def test_a_lost_upload_is_repeated(
    worker: Make, room: str, server: LiveServer, kind: str, hook: str, lose: Callable[..., None]
) -> None:
    """For a stream the provider is called again; for complete bytes it is not."""
    words: list[str] = []
    sent = threading.Semaphore(0)
    is_lost = threading.Event()

    def watch(message: Any) -> None:
        if last_part(message) != "results":
            return
        sent.release()
        if not is_lost.is_set():
            is_lost.set()
            lose(message)

    def handler(word: str) -> Any:
        words.append(word)
        return b"123" if kind == "bytes" else iter([b"12", b"3"])

    with server.connect() as api:
        api.http.event_hooks[hook].append(watch)
        manager = worker(at=api)
        manager.register_provider(Call, name="one", handler=handler, room=room)
        assert manager.read_provider(f"{room}:calls:one").content == b"123"
        assert all(sent.acquire(timeout=30) for _ in range(2))
        manager.disconnect()
    assert len(words) == (2 if kind == "stream" else 1)
    assert not sent.acquire(blocking=False)


def test_a_lost_upload_of_an_error_is_repeated(worker: Make, room: str, server: LiveServer) -> None:
    """The server cannot be reached when a provider has failed."""
    is_lost = threading.Event()

    def watch(request: httpx.Request) -> None:
        if last_part(request) == "results" and not is_lost.is_set():
            is_lost.set()
            refuse_connection(request)

    with server.connect() as api:
        api.http.event_hooks["request"].append(watch)
        manager = worker(at=api)
        manager.register_provider(Call, name="one", handler=None, room=room)
        with pytest.raises(ProviderFailed, match="not callable"):
            manager.read_provider(f"{room}:calls:one")
        manager.disconnect()
    assert is_lost.is_set()


def test_a_removed_worker_registers_its_providers_again(
    worker: Make, room: str, api: Connection, send_request: SendRequest
) -> None:
    """With a new id; the provider can be unregistered by the new or the old one; jobs are registered again
    too.
    """
    manager = worker(lambda task: 7, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    first = manager.register_provider(Call, name="one", handler=lambda word: b"1", room=room)
    assert send_request().result().content == b"1"
    old = manager.worker_id
    assert old is not None
    RestApi(api).remove_worker(old, 60)
    wait_until(lambda: manager.worker_id not in {None, old})
    assert send_request(word="again").result().content == b"1"
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 7
    [shown] = [one for one in manager.providers(room).items if one.room_id == room]
    assert shown.id != first
    manager.unregister_provider(first)
    assert not [one for one in manager.providers(room).items if one.room_id == room]


def test_a_request_survives_a_restart_of_the_server(own_server: Own, worker: Make, room: str) -> None:
    """The result is uploaded after the restart, and the client gets it."""
    live = own_server()
    gate = Gate()
    with live.connect() as api, ThreadPoolExecutor(1) as pool:
        manager = worker(at=api)
        manager.register_provider(Call, name="one", handler=gate, room=room)
        answer = pool.submit(manager.read_provider, f"{room}:calls:one", {"word": "x"})
        assert gate.entered.acquire(timeout=30)
        live.stop()
        gate.may_end.set()
        live.start()
        assert answer.result(60).content == b"x"
        assert manager.read_provider(f"{room}:calls:one", {"word": "y"}).content == b"y"
        manager.disconnect()


def test_another_worker_takes_over_a_provider(
    worker: Make, room: str, send_request: SendRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """The first worker's late result is refused without a warning; the client gets the second one's."""
    caplog.set_level(logging.INFO, REQUESTS)
    gate = Gate()
    first, second = worker(), worker()
    first.register_provider(Call, name="one", handler=gate, room=room)
    answer = send_request(word="x")
    assert gate.entered.acquire(timeout=30)
    second.register_provider(Call, name="one", handler=lambda word: b"second", room=room)
    gate.may_end.set()
    wait_until(lambda: f"provider {room}:calls:one: the server did not take" in caplog.text)
    [logged] = [
        record for record in caplog.records if record.name == REQUESTS and room in record.getMessage()
    ]
    assert logged.levelno == logging.INFO
    assert "StaleResult" in logged.getMessage()
    assert answer.result().content == b"second"
    second.disconnect()
    assert send_request(word="y").result().content == b"y"


def test_a_disconnect_waits_for_running_requests(
    worker: Make, room: str, send_request: SendRequest, api: Connection
) -> None:
    """Their results are uploaded while heartbeats continue; then provider and worker are removed."""
    gate = Gate()
    manager = worker(heartbeat_interval=0.1)
    manager.register_provider(Call, name="one", handler=gate, room=room)
    answer = send_request(word="x")
    assert gate.entered.acquire(timeout=30)
    leaving = threading.Thread(target=manager.disconnect)
    leaving.start()
    leaving.join(0.5)
    assert leaving.is_alive()
    gate.may_end.set()
    leaving.join(30)
    assert not leaving.is_alive()
    assert answer.result().content == b"x"
    with pytest.raises(ProviderNotFound):
        send_request(word="y").result()
    assert manager.worker_id is None
    assert not manager.handlers
    manager.register_provider(Call, name="one", handler=gate, room=room)
    assert send_request(word="y").result().content == b"y"


def test_an_idle_provider_disconnects_at_once(worker: Make, room: str, server: LiveServer) -> None:
    """Its open long-poll delays nothing, and no thread remains."""
    # Abandoned requests of other tests may still run.
    before = set(threading.enumerate())
    manager = worker()
    manager.register_provider(Echo, name="one", handler=0, room=room)
    wait_until(lambda: server.open_polls)
    own = set(threading.enumerate()) - before
    threads = [thread for thread in own if thread.name.startswith("zndraw-joblib-read")]
    assert len(threads) == 4
    began = time.monotonic()
    manager.disconnect()
    assert time.monotonic() - began < 10
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_disconnect_with_a_timeout_abandons_requests(
    worker: Make, room: str, send_request: SendRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets `ProviderNotFound`; the late result changes nothing."""
    caplog.set_level(logging.INFO, REQUESTS)
    gate = Gate()
    manager = worker()
    manager.register_provider(Call, name="one", handler=gate, room=room)
    answer = send_request(word="x")
    assert gate.entered.acquire(timeout=30)
    began = time.monotonic()
    manager.disconnect(timeout=0.2)
    assert time.monotonic() - began < 20
    with pytest.raises(ProviderNotFound):
        answer.result()
    gate.may_end.set()
    wait_until(lambda: f"provider {room}:calls:one: the server did not take" in caplog.text)


def test_a_provider_may_disconnect_its_own_manager(
    worker: Make, room: str, send_request: SendRequest
) -> None:
    """The disconnect does not wait for itself."""
    done = threading.Event()

    def handler(word: str) -> bytes:
        manager.disconnect()
        done.set()
        return b""

    manager = worker()
    manager.register_provider(Call, name="one", handler=handler, room=room)
    answer = send_request()
    assert done.wait(30)
    with pytest.raises(ProviderNotFound):
        answer.result()
    assert manager.worker_id is None


def test_a_drained_worker_finishes_its_requests_and_disconnects(
    worker: Make, room: str, send_request: SendRequest, api: Connection
) -> None:
    """It claims no more, finishes its running requests, and is removed."""
    gate = Gate()
    manager = worker(heartbeat_interval=0.1)
    manager.register_provider(Call, name="one", handler=gate, room=room)
    answer = send_request(word="x")
    assert gate.entered.acquire(timeout=30)
    RestApi(api).send(ops.DRAIN_WORKER, worker_id=manager.worker_id)
    waiting = threading.Thread(target=manager.wait)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    gate.may_end.set()
    waiting.join(30)
    assert not waiting.is_alive()
    assert answer.result().content == b"x"
    assert manager.worker_id is None


@pytest.mark.parametrize("trigger", ["disconnect", "drain"])
def test_providers_leave_before_the_last_task_ends(
    worker: Make, room: str, api: Connection, trigger: str
) -> None:
    """A worker that disconnects unregisters its providers first: its last task may take hours."""
    running, may_end = threading.Event(), threading.Event()
    manager = worker(lambda task: (running.set(), may_end.wait(40)), heartbeat_interval=0.1)
    manager.register(Add, room=room)
    manager.register_provider(Echo, name="one", handler=0, room=room)
    task_id = manager.submit(Add(), room=room)
    assert running.wait(30)
    leaving = threading.Thread(target=manager.disconnect if trigger == "disconnect" else manager.wait)
    if trigger == "drain":
        RestApi(api).send(ops.DRAIN_WORKER, worker_id=manager.worker_id)
    leaving.start()
    wait_until(lambda: not [one for one in manager.providers(room).items if one.room_id == room])
    assert leaving.is_alive()
    may_end.set()
    leaving.join(30)
    assert manager.get_task(task_id).status == "completed"


SCRIPT = """
import resource, sys, time
from pathlib import Path
from typing import ClassVar
from zndraw_joblib import JobManager, Provider, connect

url, token, room, folder = sys.argv[1:]
folder = Path(folder)
size = 60 * 1024 * 1024

def stream():
    for n in range(60):
        yield bytes([n]) * (1024 * 1024)
    (folder / "peak").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

class Slow(Provider):
    category: ClassVar[str] = "calls"
    content_type: ClassVar[str] = "application/octet-stream"
    word: str
    def read(self, handler):
        if self.word == "big":
            return stream()
        if self.word == "file":
            return (folder / "big").open("rb")
        (folder / "running").touch()
        while not (folder / "may-end").exists():
            time.sleep(0.01)
        return b"done"

with connect(url, token) as api, JobManager(api) as manager:
    manager.register_provider(Slow, name="one", handler=None, room=room)
    (folder / "before").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    manager.wait((folder / "ready").touch)
(folder / "left").touch()
"""


@pytest.fixture
def script(server: LiveServer, room: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Return a worker in a process of its own, which is killed at the end."""
    with ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, server.url, TOKEN, room, str(tmp_path)])
        stack.callback(process.wait)
        stack.callback(process.kill)
        wait_until((tmp_path / "ready").exists)
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_a_request_finish(
    script: subprocess.Popen[bytes], send_request: SendRequest, tmp_path: Path, number: signal.Signals
) -> None:
    """Its result is uploaded, then the process exits with code 0."""
    answer = send_request(word="slow")
    wait_until((tmp_path / "running").exists)
    script.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        script.wait(0.3)
    (tmp_path / "may-end").touch()
    assert answer.result().content == b"done"
    assert script.wait(30) == 0
    assert (tmp_path / "left").exists()


def test_a_large_result_is_streamed(
    script: subprocess.Popen[bytes], send_request: SendRequest, tmp_path: Path
) -> None:
    """60 MiB, from a stream or a file, pass through a worker whose memory grows by a few MiB."""
    whole = b"".join(bytes([n]) * (1024 * 1024) for n in range(60))
    (tmp_path / "big").write_bytes(whole)
    wanted = hashlib.sha256(whole).hexdigest()
    for word in ("file", "big"):
        assert hashlib.sha256(send_request(word=word).result().content).hexdigest() == wanted
    before, peak = (int((tmp_path / name).read_text()) for name in ("before", "peak"))
    assert peak - before < 20 * 1024
