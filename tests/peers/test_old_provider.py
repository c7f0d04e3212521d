"""A worker of version 0.1.7 serves provider requests over its Socket.IO, unchanged."""

import signal
from collections.abc import Callable

import pytest
from waiting import wait_until

from peers.conftest import TRANSPORTS, V1, Place
from peers.peer import Peer
from zndraw_joblib.contract.problems import (
    ProviderFailed,
    ProviderNotConnected,
    ProviderNotFound,
    ProviderTimeout,
)
from zndraw_joblib.worker.client import ProviderResult


def read_until_joined(place: Place, name: str, path: str) -> ProviderResult:
    """Send requests until one has a result: that shows that the worker's socket has joined its room."""

    def answer() -> ProviderResult | None:
        try:
            return place.client.read_provider(name, {"path": path}, timeout=5)
        except (ProviderNotConnected, ProviderTimeout):
            return None

    found = wait_until(answer)
    assert isinstance(found, ProviderResult)
    return found


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_it_serves(place: Place, room: str, old_worker: Callable[..., Peer], transports: list[str]) -> None:
    """JSON and bytes, each with its content type; a second equal request gets the cached result."""
    worker = old_worker(transports=transports)
    names = {}
    for kind, category in (("Words", "words"), ("Raw", "raws")):
        provider_id = worker.ask("provide", kind=kind, name="one", handler="it", room=room)
        names[kind] = f"{room}:{category}:one"
        [shown] = [one for one in place.client.providers(room).items if one.full_name == names[kind]]
        assert str(shown.id) == provider_id
    assert worker.ask("handlers") == dict.fromkeys(names.values(), "it")
    words = read_until_joined(place, names["Words"], "/a ä")
    assert (words.json(), words.content_type) == (["it", "/a ä"], "application/json")
    raw = read_until_joined(place, names["Raw"], "/b")
    assert (raw.content, raw.content_type) == (b"it /b", "application/x-msgpack")
    for path in ("/c", "/c", "/d"):
        assert place.client.read_provider(names["Raw"], {"path": path}).content == f"it {path}".encode()
    assert [read["path"] for read in worker.events("read")] == ["/a ä", "/b", "/c", "/d"]
    uploads = [line for line in worker.events(f"POST {V1}/providers/{shown.id}/results")]
    assert {line["status"] for line in uploads} == {204}


def test_a_request_that_fails(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """Version 0.1.7 reports no errors: the client gets a timeout. Other requests continue."""
    worker = old_worker(transports=["websocket"])
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    read_until_joined(place, name, "/a")
    with pytest.raises((ProviderTimeout, ProviderFailed)):
        place.client.read_provider(name, {"path": "/broken"}, timeout=1)
    assert place.client.read_provider(name, {"path": "/b"}).json() == ["it", "/b"]


def test_it_unregisters(
    place: Place, room: str, old_worker: Callable[..., Peer], front_end: Callable[..., Peer]
) -> None:
    """The provider is removed, its worker stays, and the room gets an event."""
    worker, watching = old_worker(transports=["websocket"]), front_end(room)
    worker.ask("register", name="Sum", room=room)
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    watching.wait_for("providers_invalidate")
    read_until_joined(place, name, "/a")
    worker.ask("withdraw", full_name=name)
    watching.wait_for("providers_invalidate", 2)
    with pytest.raises(ProviderNotFound):
        place.client.read_provider(name, {"path": "/a"})
    assert place.jobs(room) != {}


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL], ids=["end", "SIGTERM", "SIGKILL"])
def test_it_disconnects(
    own_place: Callable[..., Place], room: str, old_worker: Callable[..., Peer], number: signal.Signals | None
) -> None:
    """Disconnected or killed, its provider is removed."""
    place = own_place(DISCONNECT_GRACE_SECONDS="0.2")
    worker = old_worker(at=place, transports=["websocket"])
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    read_until_joined(place, name, "/a")
    worker.end(number)
    wait_until(lambda: not place.client.providers(room).items)
    with pytest.raises(ProviderNotFound):
        place.client.read_provider(name, {"path": "/a"})
    assert place.workers() == set()


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_it_serves_again_after_a_restart(
    own_place: Callable[..., Place], room: str, old_worker: Callable[..., Peer], transports: list[str]
) -> None:
    """After a restart of the server on the same port it joins again by itself."""
    place = own_place()
    worker = old_worker(at=place, transports=transports)
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    read_until_joined(place, name, "/a")
    place.server.stop()
    again = own_place(place.server.port)
    assert read_until_joined(again, name, "/b").json() == ["it", "/b"]


def test_two_workers_serve_one_provider(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """The newest one answers; after it disconnects, the other one does."""
    first, second = (old_worker(transports=["websocket"]) for _ in range(2))
    name = f"{room}:raws:one"
    for worker, handler in ((first, "first"), (second, "second")):
        worker.ask("provide", kind="Raw", name="one", handler=handler, room=room)
        assert read_until_joined(place, name, f"/{handler}").content == f"{handler} /{handler}".encode()
    second.end()
    assert read_until_joined(place, name, "/left").content == b"first /left"
