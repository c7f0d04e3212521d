"""A server that is stopped and started again on its port, while clients of others are connected."""

import time
from collections.abc import Callable

from peers.conftest import TRANSPORTS, Place, hear
from peers.peer import Peer
from peers.watching import LIFE, live, seen


def test_front_ends_come_back(
    own_place: Callable[..., Place], room: str, front_end: Callable[..., Peer]
) -> None:
    """The stop waits for none of them; they connect and join again by themselves, and see the next task."""
    place = own_place()
    watching = [front_end(room, at=place, transports=transports) for transports in TRANSPORTS]
    first = live(place, room)
    for one in watching:
        one.wait_for("task_status_event", 4)
    assert place.jobs(room) == {}  # by its answer the polls are open again
    began = time.monotonic()
    place.server.stop()
    assert time.monotonic() - began < 4
    again = own_place(place.server.port)
    for one in watching:
        one.wait_for("joined", 2, answer={})
    second = live(again, room)
    for one in watching:
        one.wait_for("task_status_event", 8)
        assert seen(one) == [(call, status) for call in (first, second) for status in LIFE]


def test_old_workers_come_back(
    own_place: Callable[..., Place], room: str, old_worker: Callable[..., Peer]
) -> None:
    """The same workers, be their sockets WebSockets or polls, join again by themselves and are woken."""
    place = own_place()
    workers = {}
    for transports in TRANSPORTS:
        worker = old_worker(at=place, transports=transports)
        home = f"{room}-{len(workers)}"
        workers[worker.ask("register", name="Sum", room=home)] = (home, worker)
        hear(place, worker, home)
    place.server.stop()
    again = own_place(place.server.port)
    for worker_id, (home, worker) in workers.items():
        hear(again, worker, home)
        call = again.caller.submit(f"{home}:analysis:Sum")
        assert str(again.caller.wait_for(call, timeout=10).worker_id) == worker_id
    assert again.workers() == workers.keys()
