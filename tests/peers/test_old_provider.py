"""A worker of version 0.1.7 serves provider requests over its Socket.IO, unchanged."""

import signal
from collections.abc import Callable
from itertools import count

import pytest
from waiting import wait_until

from peers.conftest import TRANSPORTS, V1, LiveServer
from peers.peer import Peer
from zndraw_joblib.client.job_client import ProviderResult
from zndraw_joblib.wire.problems import (
    ProviderFailed,
    ProviderNotConnected,
    ProviderNotFound,
    ProviderTimeout,
)


def read_until_joined(server: LiveServer, name: str, path: str) -> ProviderResult:
    """Send requests until one has a result, which shows that the worker's socket has joined its room."""

    def answer() -> ProviderResult | None:
        try:
            return server.client.read_provider(name, {"path": path}, timeout=5)
        except (ProviderNotConnected, ProviderTimeout):
            return None

    found = wait_until(answer)
    assert isinstance(found, ProviderResult)
    return found


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_an_old_provider_serves_requests(
    server: LiveServer, room: str, old_worker: Callable[..., Peer], transports: list[str]
) -> None:
    """JSON and bytes, each with its content type; a second equal request gets the cached result."""
    worker = old_worker(transports=transports)
    names = {}
    for kind, category in (("Words", "words"), ("Raw", "raws")):
        provider_id = worker.call("register_provider", kind=kind, name="one", handler="it", room=room)
        names[kind] = f"{room}:{category}:one"
        [shown] = [one for one in server.client.providers(room).items if one.full_name == names[kind]]
        assert str(shown.id) == provider_id
    assert worker.call("handlers") == dict.fromkeys(names.values(), "it")
    words = read_until_joined(server, names["Words"], "/a ä")
    assert (words.json(), words.content_type) == (["it", "/a ä"], "application/json")
    raw = read_until_joined(server, names["Raw"], "/b")
    assert (raw.content, raw.content_type) == (b"it /b", "application/x-msgpack")
    for path in ("/c", "/c", "/d"):
        assert server.client.read_provider(names["Raw"], {"path": path}).content == f"it {path}".encode()
    assert [read["path"] for read in worker.wait_for("read", 4)] == ["/a ä", "/b", "/c", "/d"]
    uploads = worker.wait_for(f"POST {V1}/providers/{shown.id}/results", 3)
    assert {line["status"] for line in uploads} == {204}


def test_a_failed_request_times_out(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """Version 0.1.7 reports no errors: the client gets a timeout. Other requests continue."""
    worker = old_worker(transports=["websocket"])
    worker.call("register_provider", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    read_until_joined(server, name, "/a")
    with pytest.raises((ProviderTimeout, ProviderFailed)):
        server.client.read_provider(name, {"path": "/broken"}, timeout=1)
    assert server.client.read_provider(name, {"path": "/b"}).json() == ["it", "/b"]


def test_an_old_provider_unregisters(
    server: LiveServer, room: str, old_worker: Callable[..., Peer], front_end: Callable[..., Peer]
) -> None:
    """The provider is removed, its worker stays, and the room gets an event."""
    worker, watching = old_worker(transports=["websocket"]), front_end(room)
    worker.call("register", name="Sum", room=room)
    worker.call("register_provider", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    watching.wait_for("providers_invalidate")
    read_until_joined(server, name, "/a")
    worker.call("unregister_provider", full_name=name)
    watching.wait_for("providers_invalidate", 2)
    with pytest.raises(ProviderNotFound):
        server.client.read_provider(name, {"path": "/a"})
    assert server.jobs(room) != {}


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL], ids=["end", "SIGTERM", "SIGKILL"])
def test_a_disconnected_provider_is_removed(
    own_server: Callable[..., LiveServer],
    room: str,
    old_worker: Callable[..., Peer],
    number: signal.Signals | None,
) -> None:
    """Disconnected or killed, its provider is removed."""
    server = own_server(DISCONNECT_GRACE_SECONDS="0.2")
    worker = old_worker(at=server, transports=["websocket"])
    worker.call("register_provider", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    read_until_joined(server, name, "/a")
    worker.end(number)
    wait_until(lambda: not server.client.providers(room).items)
    with pytest.raises(ProviderNotFound):
        server.client.read_provider(name, {"path": "/a"})
    assert server.workers() == set()


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_an_old_provider_serves_again_after_a_restart(
    own_server: Callable[..., LiveServer], room: str, old_worker: Callable[..., Peer], transports: list[str]
) -> None:
    """The server restarts on the same port; the worker reconnects and joins its room again."""
    server = own_server()
    worker = old_worker(at=server, transports=transports)
    worker.call("register_provider", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    read_until_joined(server, name, "/a")
    server.running_server.stop()
    again = own_server(port=server.running_server.port)
    assert read_until_joined(again, name, "/b").json() == ["it", "/b"]


def test_two_workers_serve_one_provider(
    server: LiveServer, room: str, old_worker: Callable[..., Peer]
) -> None:
    """The newest worker gets the requests; after it disconnects, the other one gets them."""
    first, second = (old_worker(transports=["websocket"]) for _ in range(2))
    name = f"{room}:raws:one"
    first.call("register_provider", kind="Raw", name="one", handler="first", room=room)
    assert read_until_joined(server, name, "/a").content == b"first /a"
    second.call("register_provider", kind="Raw", name="one", handler="second", room=room)
    # Until its socket has joined the room, the other one gets the requests.
    paths = (f"/{number}" for number in count())
    wait_until(lambda: read_until_joined(server, name, next(paths)).content.startswith(b"second /"))
    second.end()
    assert read_until_joined(server, name, "/left").content == b"first /left"
