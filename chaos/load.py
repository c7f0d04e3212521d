"""Tasks that stream in, and what became of their submits."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace

import httpx

from chaos import jobs
from chaos.evidence import Submission
from zndraw_joblib.worker.api import API_PREFIX

_SENDERS = 8
_PAUSE_SECONDS = 0.2
_MANY = (jobs.ONCE, jobs.AGAIN, jobs.HOME)
_SECONDS = {jobs.FEW.name: 0.5, jobs.SLOW.name: 0.3, jobs.LINE.name: 0.1}


def plan(rng: random.Random, count: int, offered: Sequence[jobs.Job] = jobs.ALL) -> list[Submission]:
    """Return what shall be submitted, in this order."""
    planned = []
    for number in range(count):
        job = rng.choices(offered, [3 if job in _MANY else 1 for job in offered])[0]
        room = rng.choice(jobs.ROOMS) if job.room == jobs.GLOBAL else job.room
        fails = rng.choices((0, 1, 3), (17, 2, 1))[0]
        planned.append(Submission(number, job.name, room, fails, rng.random()))
    return planned


async def submit_all(
    client: httpx.AsyncClient, planned: list[Submission], seconds: float, longest: float
) -> None:
    """Submit over `seconds`, evenly, tasks of up to `longest` seconds.

    What got no clear answer is in doubt, and stays so; another one like it, which is added to `planned`,
    takes its place.
    """
    began = time.monotonic()
    waiting = list(enumerate(planned))[::-1]

    async def send() -> None:
        while waiting:
            place, submission = waiting.pop()
            await asyncio.sleep(began + seconds * place / len(planned) - time.monotonic())
            takes = submission.share * min(longest, _SECONDS.get(submission.job, longest))
            await submit(client, submission, takes)
            while submission.task is None:
                await asyncio.sleep(_PAUSE_SECONDS)
                submission = replace(submission, number=len(planned))
                planned.append(submission)
                await submit(client, submission, takes)

    await asyncio.gather(*[send() for _ in range(_SENDERS)])


async def submit(
    client: httpx.AsyncClient, submission: Submission, takes: float = 0.0, gate: str = ""
) -> None:
    """Submit once; again only where the server has said that there is no such job at present."""
    payload = {"number": submission.number, "seconds": takes, "failures": submission.failures, "gate": gate}
    url = f"{API_PREFIX}/rooms/{submission.room}/tasks/{submission.job}"
    while True:
        submission.sent_at = time.time()
        try:
            answer = await client.post(url, json={"payload": payload})
        except httpx.TransportError:
            return
        if answer.status_code == 202:
            submission.answered_at, submission.task = time.time(), answer.json()["id"]
        elif answer.status_code == 404:
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        elif answer.status_code < 500:
            raise RuntimeError(f"a submit was refused: {answer.status_code} {answer.text}")
        return
