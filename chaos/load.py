"""A steady load on two lanes, and a submitter that repeats a submission until the server has accepted it."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from chaos.environment import Environment
from chaos.jobs import ROOMS, Job
from chaos.records import Submission
from zndraw_joblib.wire.operations import PREFIX

_INTERVAL_SECONDS = 0.12
_TASK_SECONDS = 0.05
_PAUSE_SECONDS = 0.3
_TIMEOUT_SECONDS = 10.0
_MAX_OPEN = 64


@dataclass
class Lane:
    """A job, and the environments through which its tasks are submitted, in turn."""

    job: Job
    entrances: Sequence[Environment]
    submissions: list[Submission] = field(default_factory=list)


class Load:
    """Submits tasks to lanes at a steady rate, whether or not earlier submissions were answered."""

    def __init__(self, lanes: Sequence[Lane], padding: int = 0) -> None:
        self._lanes = lanes
        self._padding = padding
        self._numbers = itertools.count()
        self._submitting: set[asyncio.Task[None]] = set()
        self._running = [asyncio.create_task(self._run(lane)) for lane in lanes]
        self.refusals = 0

    @property
    def submissions(self) -> list[Submission]:
        """The submissions of all lanes."""
        return [submission for lane in self._lanes for submission in lane.submissions]

    async def stop(self, seconds: float) -> None:
        """Submit no new task; wait at most `seconds` until the submitted ones are accepted."""
        for task in self._running:
            task.cancel()
        if self._submitting:
            await asyncio.wait(self._submitting, timeout=seconds)
        for task in self._submitting:
            task.cancel()

    async def _run(self, lane: Lane) -> None:
        # Counted for each lane: the open submissions of an affected lane must not stop the healthy one.
        open_submissions: set[asyncio.Task[None]] = set()
        for environment in itertools.cycle(lane.entrances):
            if len(open_submissions) < _MAX_OPEN:
                submission = Submission(next(self._numbers), lane.job.name, ROOMS[0])
                if lane.job.room in ROOMS:
                    submission.room = lane.job.room
                lane.submissions.append(submission)
                task = asyncio.create_task(self._submit(environment.client, submission))
                for submitting in (self._submitting, open_submissions):
                    submitting.add(task)
                    task.add_done_callback(submitting.discard)
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def _submit(self, client: httpx.AsyncClient, submission: Submission) -> None:
        """Repeat a submission with the same Idempotency-Key until it is accepted."""
        payload: dict[str, Any] = {"number": submission.number, "seconds": _TASK_SECONDS}
        if self._padding:
            payload["padding"] = random.randbytes(self._padding // 2).hex()
        url = f"{PREFIX}/rooms/{submission.room}/tasks/{submission.job}"
        headers = {"Idempotency-Key": f'"{uuid4()}"'}
        submission.sent_at = time.time()
        while True:
            with suppress(httpx.TransportError):
                response = await client.post(
                    url, json={"payload": payload}, headers=headers, timeout=_TIMEOUT_SECONDS
                )
                if response.status_code == 202:
                    submission.response_at, submission.task_id = time.time(), response.json()["id"]
                    return
                self.refusals += 1
                # A job is not registered while its workers are lost.
                assert response.status_code == 404 or response.status_code >= 409, response.text
            await asyncio.sleep(_PAUSE_SECONDS)
