"""A server that restarts on its port while other clients are connected."""

import time
from collections.abc import Callable

import pytest

from peers.conftest import TRANSPORTS, LiveServer, submit_until_woken
from peers.peer import Peer
from peers.watching import LIFE, run_task, statuses_seen


@pytest.mark.slow
def test_front_ends_reconnect(
    own_server: Callable[..., LiveServer], room: str, front_end: Callable[..., Peer]
) -> None:
    """The stop does not wait for front-ends; they reconnect, join again and get the next events."""
    server = own_server()
    watching = [front_end(room, at=server, transports=transports) for transports in TRANSPORTS]
    first = run_task(server, room)
    for one in watching:
        one.wait_for("task_status_event", 4)
    assert server.jobs(room) == {}  # after this response the long-polls are open again
    began = time.monotonic()
    server.running_server.stop()
    assert time.monotonic() - began < 4
    again = own_server(port=server.running_server.port)
    for one in watching:
        one.wait_for("joined", 2, answer={})
    second = run_task(again, room)
    for one in watching:
        one.wait_for("task_status_event", 8)
        assert statuses_seen(one) == [(task_id, status) for task_id in (first, second) for status in LIFE]


@pytest.mark.slow
def test_old_workers_reconnect(
    own_server: Callable[..., LiveServer], room: str, old_worker: Callable[..., Peer]
) -> None:
    """With WebSocket or polling they keep their ids, join again, and are woken by events."""
    server = own_server()
    workers = {}
    for transports in TRANSPORTS:
        worker = old_worker(at=server, transports=transports)
        home = f"{room}-{len(workers)}"
        workers[worker.call("register", name="Sum", room=home)] = (home, worker)
        submit_until_woken(server, worker, home)
    server.running_server.stop()
    again = own_server(port=server.running_server.port)
    for worker_id, (home, worker) in workers.items():
        submit_until_woken(again, worker, home)
        task_id = again.client.submit(f"{home}:analysis:Sum")
        assert str(again.client.wait_for(task_id, timeout=10).worker_id) == worker_id
    assert again.workers() == workers.keys()
