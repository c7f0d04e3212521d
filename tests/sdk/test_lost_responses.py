"""A claim whose response was lost is repeated, and gets the same task."""

import json
import threading
from collections.abc import Callable

import httpx
import pytest

from sdk.jobs import Add
from sdk.live import LiveServer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]
Lose = Callable[[httpx.Response], None]


def lose_connection(response: httpx.Response) -> None:
    """Lose the connection before the response arrives."""
    raise httpx.ReadError("connection reset")


def time_out(response: httpx.Response) -> None:
    """Wait too long for the response."""
    raise httpx.ReadTimeout("timed out")


def bad_gateway(response: httpx.Response) -> None:
    """Get a proxy's error instead of the response."""
    response.status_code = 502


def lose_one_claim(api: Connection, field: str, lose: Lose) -> list[str]:
    """Lose the first response to a claim that has `field`. Return the ids of all claims, also later ones."""
    ids: list[str] = []
    is_lost = threading.Event()

    def watch(response: httpx.Response) -> None:
        if response.request.url.path.endswith("/claim"):
            ids.append(json.loads(response.request.content)["claim_id"])
            response.read()
            if response.json().get(field) and not is_lost.is_set():
                is_lost.set()
                lose(response)

    api.http.event_hooks["response"].append(watch)
    return ids


@pytest.mark.parametrize("lose", [lose_connection, time_out, bad_gateway])
def test_a_claim_is_repeated_with_its_id(worker: Make, room: str, server: LiveServer, lose: Lose) -> None:
    """The task is not stranded; a claim that got its response is not repeated."""
    with server.connect() as api:
        ids = lose_one_claim(api, "tasks", lose)
        manager = worker(lambda task: task.attempt, at=api)
        manager.register(Add, room=room)
        first, second = (manager.wait_for(manager.submit(Add(), room=room), 30) for _ in range(2))
        manager.disconnect()
    assert (first.result, second.result) == (1, 1)
    answered = list(dict.fromkeys(ids))
    assert len(ids) == len(answered) + 1
