"""A worker serves provider requests: by claims, with or without Socket.IO, in threads of their own."""

import io
import logging
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import uuid4

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import LiveServer
from sdk.providers import Call, Data, Echo, Gate, Text
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.events import providers_of
from zndraw_joblib.wire.problems import (
    InvalidRequest,
    ProviderFailed,
    ProviderNotConnected,
    ProviderNotFound,
    ProviderTimeout,
)
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.registrations import ProviderRegistration
from zndraw_joblib.worker.rest import RestApi

Make = Callable[..., JobManager]
Own = Callable[..., LiveServer]
REQUESTS = "zndraw_joblib.worker.provider_requests"


class Color(Enum):
    RED = "red"


def test_a_request_gets_its_result(worker: Make, room: str) -> None:
    """Without `execute` and without any job; `handlers` and the room's list show the provider."""
    manager = worker()
    provider_id = manager.register_provider(Echo, name="one", handler="of the worker", room=room)
    name = f"{room}:echoes:one"
    answer = worker().read_provider(name, {"word": "ä&=?", "ratio": 0.5, "is_loud": True})
    assert answer.content_type == "application/json"
    expected_json = {"word": "ä&=?", "numbers": [], "ratio": 0.5, "is_loud": True, "handler": "of the worker"}
    assert answer.json() == expected_json
    assert dict(manager.handlers) == {name: "of the worker"}
    [listed] = [one for one in manager.providers(room).items if one.full_name == name]
    assert (listed.id, listed.worker_id, listed.schema_) == (
        provider_id,
        manager.worker_id,
        Echo.model_json_schema(),
    )


def test_parameters_of_all_kinds(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """A list is sent as a repeated parameter; a single value for a list field becomes a list."""
    manager = worker()
    manager.register_provider(Echo, name="one", handler=None, room=room)
    for params, field, value in [
        ({"numbers": [1]}, "numbers", [1]),
        ({"numbers": [1, 2]}, "numbers", [1, 2]),
        ({"numbers": ()}, "numbers", []),
        ({"ratio": None}, "ratio", None),
        ({"word": Color.RED}, "word", "red"),
        ({"word": datetime(2020, 1, 2, tzinfo=UTC)}, "word", "2020-01-02T00:00:00Z"),
    ]:
        with subtests.test(params=params, field=field, value=value):
            assert manager.read_provider(f"{room}:echoes:one", params).json()[field] == value


def test_a_nested_parameter_is_refused(worker: Make) -> None:
    """Before a request is sent."""
    with pytest.raises(ValueError, match="'numbers' is nested"):
        worker().read_provider("a:b:c", {"numbers": [[1]]})
    with pytest.raises(ProviderNotFound):
        worker().read_provider("a")


def stream() -> Iterator[bytes]:
    """Yield some pieces, one of them empty."""
    yield b"a"
    yield b""
    yield bytearray(b"b")


def test_values_that_a_provider_may_return(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """Bytes, streams of bytes, files; a string for a text type; and any JSON value."""
    manager = worker()
    values = [
        (Call, lambda: b"bytes", b"bytes"),
        (Call, lambda: b"", b""),
        (Call, lambda: bytearray(b"bytes"), b"bytes"),
        (Call, lambda: memoryview(b"abcdef")[::2], b"ace"),
        (Call, lambda: array("h", [1, 2]), array("h", [1, 2]).tobytes()),
        (Call, lambda: array("h"), b""),
        (Call, stream, b"ab"),
        (Call, lambda: iter(()), b""),
        (Call, lambda: io.BytesIO(b"of a file"), b"of a file"),
        (Text, lambda: "größer", "größer".encode()),
        (Text, lambda: iter(["a", "ö"]), "aö".encode()),
        (Text, lambda: io.StringIO("of a file"), b"of a file"),
        (Data, lambda: {"time": datetime(2020, 1, 2, tzinfo=UTC)}, b'{"time":"2020-01-02T00:00:00Z"}'),
        (Data, lambda: None, b"null"),
        (Data, lambda: "text", b'"text"'),
        (Data, lambda: [1, Add(a=1)], b'[1,{"a":1,"b":0}]'),
        (Data, lambda: b"[1]", b"[1]"),
        (Data, lambda: iter([b"[", b"1]"]), b"[1]"),
    ]
    for number, (cls, make, content) in enumerate(values):
        with subtests.test(cls=cls, content=content):
            manager.register_provider(cls, name=f"{number}", handler=lambda word: make(), room=room)
            answer = manager.read_provider(f"{room}:calls:{number}")
            assert (answer.content, answer.content_type) == (content, cls.content_type)


def broken() -> Iterator[bytes]:
    """Fail after the first piece."""
    yield b"a" * 1_000_000
    raise RuntimeError("broken off")


def exit_process(word: str) -> None:
    """Call sys.exit, as a library may."""
    sys.exit("bye")


def fail(word: str) -> None:
    """Raise an error with a text for the client."""
    raise LookupError(f"there is no {word}")


def test_an_exception_of_a_provider_reaches_the_client(
    worker: Make, room: str, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    """At once, with its class and text; the log has the traceback. Other requests continue."""
    manager = worker(read_concurrency=1)
    manager.register_provider(Echo, name="echo", handler=0, room=room)
    handlers = [
        (Call, fail, ("LookupError", "there is no thing")),
        (Call, exit_process, ("SystemExit", "bye")),
        (Call, lambda word: broken(), ("RuntimeError", "broken off")),
        (Call, lambda word: "text", ("TypeError", "must return bytes")),
        (Call, lambda word: None, ("TypeError", "returned NoneType")),
        (Call, lambda word: iter([1]), ("TypeError", "returned int")),
        (Data, lambda word: float("nan"), ("ValueError", "a number must be finite")),
        (Data, lambda word: object(), ("PydanticSerializationError", "object")),
        (Call, None, ("TypeError", "not callable")),
    ]
    for number, (cls, handler, expected) in enumerate(handlers):
        with subtests.test(cls=cls, expected=expected):
            caplog.clear()
            manager.register_provider(cls, name=f"{number}", handler=handler, room=room)
            began = time.monotonic()
            with pytest.raises(ProviderFailed) as raised:
                manager.read_provider(f"{room}:calls:{number}", {"word": "thing"})
            assert time.monotonic() - began < 20
            assert (raised.value.problem.model_extra or {})["error"] == expected[0]
            assert expected[1] in str(raised.value)
            [logged] = [
                record for record in caplog.records if record.name == REQUESTS and room in record.getMessage()
            ]
            assert logged.levelno == logging.ERROR
            assert logged.exc_info is not None
            assert manager.read_provider(f"{room}:echoes:echo").json()["handler"] == 0


def test_invalid_parameters_are_named(worker: Make, room: str) -> None:
    """The client's error names the invalid parameter."""
    manager = worker()
    manager.register_provider(Echo, name="one", handler=0, room=room)
    with pytest.raises(InvalidRequest, match=r"numbers.1: .*integer") as raised:
        manager.read_provider(f"{room}:echoes:one", {"numbers": ["1", "two"], "word": "x"})
    assert raised.value.problem.status == 422


def test_a_provider_class_needs_only_its_methods(worker: Make, room: str) -> None:
    """It need not inherit from `Provider`."""

    class Plain:
        category = Color.RED

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"type": "object"}

        @classmethod
        def model_validate(cls, params: dict[str, Any]) -> "Plain":
            if "bad" in params:
                raise ValueError("bad is bad")
            return cls()

        def read(self, handler: Any) -> Any:
            return handler

    manager = worker()
    manager.register_provider(Plain, name="one", handler=[1], room=room)
    assert manager.read_provider(f"{room}:red:one").json() == [1]
    with pytest.raises(InvalidRequest, match="bad is bad"):
        manager.read_provider(f"{room}:red:one", {"bad": 1})


def test_requests_run_beside_each_other_and_beside_tasks(worker: Make, room: str, server: LiveServer) -> None:
    """Up to read_concurrency at once; while all these threads are busy, tasks run and heartbeats go out."""
    gate = Gate()
    beats = threading.Semaphore(0)
    with server.connect(realtime=True) as api:
        api.http.event_hooks["response"].append(
            lambda response: beats.release() if response.request.method == "PATCH" else None
        )
        manager = worker(lambda task: 7, at=api, read_concurrency=2, heartbeat_interval=0.1)
        manager.register(Add, room=room)
        manager.register_provider(Call, name="one", handler=gate, room=room)
        with ThreadPoolExecutor(3) as pool:
            answers = [
                pool.submit(worker().read_provider, f"{room}:calls:one", {"word": str(n)}) for n in range(3)
            ]
            assert all(gate.entered.acquire(timeout=30) for _ in range(2))
            assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 7
            while beats.acquire(blocking=False):
                pass
            assert all(beats.acquire(timeout=30) for _ in range(3))
            assert not gate.entered.acquire(blocking=False)
            gate.may_end.set()
            assert [answer.result().content for answer in answers] == [b"0", b"1", b"2"]
        assert {name.rpartition("-")[0] for name in gate.threads} == {"zndraw-joblib-read"}
        assert len(gate.threads) == 2
        manager.disconnect()


def test_with_realtime_an_event_wakes_the_worker(own_server: Own, worker: Make, room: str) -> None:
    """If claims do not wait on the server, an event starts the claim. The room is left at the end."""
    live = own_server()
    seen: list[str] = []
    with live.connect(realtime=True) as api:
        manager = worker(at=api, long_poll=0, polling_interval=60)
        manager.register_provider(Call, name="one", handler=lambda word: seen.append(word) or b"1", room=room)
        hall = providers_of(f"{room}:calls:one")
        wait_until(lambda: live.sockets_in(hall))
        for n in range(3):
            began = time.monotonic()
            assert manager.read_provider(f"{room}:calls:one", {"word": n}).content == b"1"
            assert time.monotonic() - began < 30
        assert seen == ["0", "1", "2"]
        manager.unregister_provider(f"{room}:calls:one")
        wait_until(lambda: not live.sockets_in(hall))
        manager.register_provider(Call, name="one", handler=Gate(), room=room)
        wait_until(lambda: live.sockets_in(hall))
        manager.disconnect()
        wait_until(lambda: not live.sockets_in(hall))


@pytest.mark.parametrize("by", ["id", "text of the id", "name"])
def test_a_provider_is_unregistered(worker: Make, room: str, by: str) -> None:
    """By its id or its name; then neither the manager nor the server has it."""
    manager = worker()
    provider_id = manager.register_provider(Echo, name="one", handler=0, room=room)
    name = f"{room}:echoes:one"
    manager.unregister_provider({"id": provider_id, "name": name}.get(by, str(provider_id)))
    assert dict(manager.handlers) == {}
    with pytest.raises(ProviderNotFound):
        manager.read_provider(name)
    for gone in (provider_id, name, uuid4()):
        with pytest.raises(KeyError):
            manager.unregister_provider(gone)


def test_an_invalid_name_is_refused(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """Without a request to the server; no thread starts."""
    for name, error in [("a:b", "name: a name has"), ("", "name: a name has"), ("a" * 129, "name: a name")]:
        with subtests.test(name=name, error=error):
            manager = worker()
            with pytest.raises(ValueError, match=error):
                manager.register_provider(Echo, name=name, handler=0, room=room)
            with pytest.raises(ValueError, match="read_concurrency must be at least 1"):
                worker(read_concurrency=0)
            assert manager.worker_id is None


def test_requests_of_an_unknown_provider_fail(worker: Make, room: str, api: Connection) -> None:
    """Another program registered it for this worker: its clients get an error."""
    manager = worker()
    manager.register_provider(Echo, name="one", handler=0, room=room)
    RestApi(api).register_provider(
        room, ProviderRegistration(Call, "two", room, None).request(manager.worker_id)
    )
    with pytest.raises(ProviderFailed, match="does not know the provider"):
        manager.read_provider(f"{room}:calls:two")


def test_read_provider_ends_after_its_timeout(worker: Make, room: str) -> None:
    """It raises a TimeoutError, and a later request gets the result."""
    gate = Gate()
    manager = worker()
    manager.register_provider(Call, name="one", handler=gate, room=room)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as raised:
        manager.read_provider(f"{room}:calls:one", timeout=1)
    assert isinstance(raised.value, ProviderTimeout)
    assert time.monotonic() - began < 20
    gate.may_end.set()
    assert manager.read_provider(f"{room}:calls:one").content == b""
    assert gate.entered.acquire(timeout=30)
    assert not gate.entered.acquire(blocking=False)


def test_read_provider_repeats_the_request(own_server: Own, worker: Make, room: str) -> None:
    """If the server does not let a request wait, the client repeats it."""
    live = own_server(provider_long_poll_max_seconds=0)
    gate = Gate()
    with live.connect() as api, ThreadPoolExecutor(1) as pool:
        manager = worker(at=api)
        manager.register_provider(Call, name="one", handler=gate, room=room)
        answer = pool.submit(manager.read_provider, f"{room}:calls:one", {"word": "x"}, timeout=50)
        assert gate.entered.acquire(timeout=30)
        gate.may_end.set()
        assert answer.result().content == b"x"
        manager.disconnect()


def test_a_provider_without_worker_fails_at_once(own_server: Own, worker: Make, room: str) -> None:
    """The client does not wait for its whole timeout."""
    live = own_server()
    with live.connect() as api:
        remote = RestApi(api)
        remote.register_provider(room, ProviderRegistration(Call, "one", room, None).request(None))
        began = time.monotonic()
        with pytest.raises(ProviderNotConnected):
            worker(at=api).read_provider(f"{room}:calls:one", timeout=20)
        assert time.monotonic() - began < 15


class Host:
    """A host's `ApiManager`, which raises errors of its own."""

    def __init__(self, api: Connection) -> None:
        self.http, self.base_url, self.get_headers = api.http, api.base_url, api.get_headers

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise a plain error instead of a problem."""
        if not response.is_success:
            raise RuntimeError(response.text)


def test_a_timeout_with_a_hosts_own_errors(worker: Make, room: str, api: Connection) -> None:
    """A timeout is a TimeoutError, also if a host raises its own errors."""
    gate = Gate()
    manager = worker()
    manager.register_provider(Call, name="one", handler=gate, room=room)
    with pytest.raises(ProviderTimeout):
        worker(at=Host(api)).read_provider(f"{room}:calls:one", timeout=0.5)
    gate.may_end.set()
    with pytest.raises(RuntimeError):
        worker(at=Host(api)).read_provider(f"{room}:calls:two", timeout=0.5)


def test_a_result_that_is_too_large(own_server: Own, worker: Make, room: str) -> None:
    """The client's error names the limit, for bytes and for a stream."""
    live = own_server(max_result_bytes=1000)
    with live.connect() as api:
        manager = worker(at=api)
        for name, handler in [("bytes", lambda word: bytes(5_000_000)), ("stream", lambda word: iter(big()))]:
            manager.register_provider(Call, name=name, handler=handler, room=room)
            with pytest.raises(ProviderFailed, match=r"may have at most 1000 bytes") as raised:
                manager.read_provider(f"{room}:calls:{name}", timeout=50)
            assert (raised.value.problem.model_extra or {})["error"] == "ContentTooLarge"
        manager.disconnect()


def big() -> Iterator[bytes]:
    """Yield 5 MB."""
    for _ in range(50):
        yield bytes(100_000)
