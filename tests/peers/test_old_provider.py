"""A worker of the package's version 0.1.7 serves data, over its Socket.IO, unchanged."""

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


def hear(place: Place, name: str, path: str) -> ProviderResult:
    """Read until there is an answer: by then its socket has joined, which nothing else tells."""

    def answer() -> ProviderResult | None:
        try:
            return place.caller.read_provider(name, {"path": path}, timeout=5)
        except (ProviderNotConnected, ProviderTimeout):
            return None

    found = wait_until(answer)
    assert isinstance(found, ProviderResult)
    return found


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_it_serves(place: Place, room: str, old_worker: Callable[..., Peer], transports: list[str]) -> None:
    """JSON and bytes, each of its content type; what was read once is not read again soon."""
    worker = old_worker(transports=transports)
    names = {}
    for kind, category in (("Words", "words"), ("Raw", "raws")):
        provider_id = worker.ask("provide", kind=kind, name="one", handler="it", room=room)
        names[kind] = f"{room}:{category}:one"
        [shown] = [one for one in place.caller.providers(room).items if one.full_name == names[kind]]
        assert str(shown.id) == provider_id
    assert worker.ask("handlers") == dict.fromkeys(names.values(), "it")
    words = hear(place, names["Words"], "/a ä")
    assert (words.json(), words.content_type) == (["it", "/a ä"], "application/json")
    raw = hear(place, names["Raw"], "/b")
    assert (raw.content, raw.content_type) == (b"it /b", "application/x-msgpack")
    for path in ("/c", "/c", "/d"):
        assert place.caller.read_provider(names["Raw"], {"path": path}).content == f"it {path}".encode()
    assert [read["path"] for read in worker.told("read")] == ["/a ä", "/b", "/c", "/d"]
    uploads = [line for line in worker.told(f"POST {V1}/providers/{shown.id}/results")]
    assert {line["status"] for line in uploads} == {204}


def test_a_read_that_fails(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """It does not tell: the reader gets a timeout. Other reads go on."""
    worker = old_worker(transports=["websocket"])
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    hear(place, name, "/a")
    with pytest.raises((ProviderTimeout, ProviderFailed)):
        place.caller.read_provider(name, {"path": "/broken"}, timeout=1)
    assert place.caller.read_provider(name, {"path": "/b"}).json() == ["it", "/b"]


def test_it_withdraws(
    place: Place, room: str, old_worker: Callable[..., Peer], front_end: Callable[..., Peer]
) -> None:
    """The provider is gone, its worker stays, and the room is told."""
    worker, watching = old_worker(transports=["websocket"]), front_end(room)
    worker.ask("register", name="Sum", room=room)
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    watching.wait_for("providers_invalidate")
    hear(place, name, "/a")
    worker.ask("withdraw", full_name=name)
    watching.wait_for("providers_invalidate", 2)
    with pytest.raises(ProviderNotFound):
        place.caller.read_provider(name, {"path": "/a"})
    assert place.jobs(room) != {}


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL], ids=["end", "SIGTERM", "SIGKILL"])
def test_it_leaves(
    own_place: Callable[..., Place],
    room: str,
    old_worker: Callable[..., Peer],
    number: signal.Signals | None,
) -> None:
    """Disconnected, or killed, it takes its provider with it."""
    place = own_place(DISCONNECT_GRACE_SECONDS="0.2")
    worker = old_worker(at=place, transports=["websocket"])
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    hear(place, name, "/a")
    worker.end(number)
    wait_until(lambda: not place.caller.providers(room).items)
    with pytest.raises(ProviderNotFound):
        place.caller.read_provider(name, {"path": "/a"})
    assert place.workers() == set()


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_it_serves_again_after_a_restart(
    own_place: Callable[..., Place], room: str, old_worker: Callable[..., Peer], transports: list[str]
) -> None:
    """Of the server, on its port; it joins again by itself."""
    place = own_place()
    worker = old_worker(at=place, transports=transports)
    worker.ask("provide", kind="Words", name="one", handler="it", room=room)
    name = f"{room}:words:one"
    hear(place, name, "/a")
    place.server.stop()
    again = own_place(place.server.port)
    assert hear(again, name, "/b").json() == ["it", "/b"]


def test_two_of_them_serve_one_provider(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """The newest answers, and when it leaves, the other does."""
    first, second = (old_worker(transports=["websocket"]) for _ in range(2))
    name = f"{room}:raws:one"
    for worker, handler in ((first, "first"), (second, "second")):
        worker.ask("provide", kind="Raw", name="one", handler=handler, room=room)
        assert hear(place, name, f"/{handler}").content == f"{handler} /{handler}".encode()
    second.end()
    assert hear(place, name, "/left").content == b"first /left"
