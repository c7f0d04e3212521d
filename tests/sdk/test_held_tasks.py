"""A worker names the tasks that it holds in each heartbeat, from the claim until the report arrived."""

import json
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ClassVar

import httpx
import pytest
from pydantic import field_validator
from waiting import wait_until

from sdk.live import LiveServer
from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


class Slow(Extension):
    """Takes its time to check its payload."""

    category = Category.ANALYSIS
    word: str
    began: ClassVar[threading.Event]
    may_end: ClassVar[threading.Event]

    @field_validator("word")
    @classmethod
    def check(cls, word: str) -> str:
        """Wait for the test."""
        cls.began.set()
        assert cls.may_end.wait(30)
        if word == "bad":
            raise ValueError("that word is bad")
        return word

    def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the word."""
        return self.word


@pytest.mark.parametrize("word", ["good", "bad"])
def test_a_task_is_named_while_its_payload_is_checked(
    worker: Make, room: str, server: LiveServer, word: str
) -> None:
    """The job's own code may take longer than the server waits for a worker to name a task."""
    Slow.began, Slow.may_end = threading.Event(), threading.Event()
    named: SimpleQueue[list[str]] = SimpleQueue()

    def watch(request: httpx.Request) -> None:
        if request.method == "PATCH" and "/workers/" in request.url.path:
            named.put([task["id"] for task in json.loads(request.content)["tasks"]])

    with server.connect() as api:
        api.http.event_hooks["request"].append(watch)
        manager = worker(lambda task: task.extension.word, at=api, heartbeat_interval=0.1)
        manager.register(Slow, room=room)
        task_id = worker().submit(f"{room}:analysis:Slow", {"word": word})
        try:
            assert Slow.began.wait(30)
            while not named.empty():
                named.get()
            named.get(timeout=30)  # it may have been written just before
            assert named.get(timeout=30) == [task_id]
        finally:
            Slow.may_end.set()
        ended = manager.wait_for(task_id, 30)
        assert ended.status == (TaskStatus.COMPLETED if word == "good" else TaskStatus.FAILED)
        wait_until(lambda: named.get(timeout=30) == [])
        manager.disconnect()
