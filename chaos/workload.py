"""The workload of a run: a stream of tasks while faults are injected, then time to recover."""

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import httpx

from chaos import jobs
from chaos.environment import Environment
from chaos.faults import FaultInjector
from chaos.graphs import GraphLoad
from chaos.groups import GroupLoad
from chaos.records import RunRecord, Submission
from zndraw_joblib.wire.operations import PREFIX

_SUBMITTERS = 8
_GROUP_WORKERS = 2
_RETRY_SECONDS = 0.2
_RECOVERY_SECONDS = 45.0
_FREQUENT = (jobs.SINGLE_ATTEMPT, jobs.RETRIED, jobs.RETRIED_IN_ROOM)
_MAX_DURATIONS = {jobs.LIMITED.name: 0.5, jobs.SLOW.name: 0.3, jobs.ORDERED.name: 0.1}


class Workload(NamedTuple):
    """How many tasks to submit within `seconds`, for how many workers."""

    seed: int
    tasks: int
    workers: int
    seconds: float

    @property
    def max_duration(self) -> float:
        """The longest duration of a task, in seconds. It keeps workers busy about half of the time."""
        return self.workers * self.seconds / self.tasks


async def run_workload(
    environment: Environment,
    workload: Workload,
    injector: FaultInjector,
    faults: Coroutine[Any, Any, None],
    groups: GroupLoad,
    graphs: GraphLoad,
) -> RunRecord:
    """Submit tasks, groups and graphs while `faults` injects faults and the receiver of webhooks is flaky.

    Wait until all have ended, and return the record.
    """
    planned = plan_submissions(random.Random(workload.seed), workload.tasks)
    for index in range(workload.workers):
        # The ordered job has one worker, which serves no other job.
        environment.workers.add([job for job in jobs.ALL if (job == jobs.ORDERED) != bool(index)])
    for _ in range(_GROUP_WORKERS):
        environment.workers.add(jobs.GROUPED)
        environment.workers.add(jobs.STEPS)
    await environment.wait_for_jobs([*jobs.ALL, *jobs.GROUPED, *jobs.STEPS])
    await groups.start()
    await graphs.start()
    groups.receiver.is_flaky = True
    async with asyncio.TaskGroup() as group:
        group.create_task(submit_all(environment.client, planned, workload.seconds, workload.max_duration))
        group.create_task(faults)
    await injector.finish()
    await asyncio.gather(groups.stop(_RECOVERY_SECONDS), graphs.stop(_RECOVERY_SECONDS))
    await asyncio.gather(groups.recover(_RECOVERY_SECONDS), graphs.recover(_RECOVERY_SECONDS))
    await environment.wait_until_ended(planned, _RECOVERY_SECONDS)
    record = await graphs.add_to(await groups.add_to(await environment.collect(planned)))
    await asyncio.to_thread(environment.workers.stop)
    return record


def plan_submissions(
    rng: random.Random, count: int, offered: Sequence[jobs.Job] = jobs.ALL
) -> list[Submission]:
    """Return the submissions in the order in which to send them."""
    planned = []
    for number in range(count):
        job = rng.choices(offered, [3 if job in _FREQUENT else 1 for job in offered])[0]
        room = rng.choice(jobs.ROOMS) if job.room == jobs.GLOBAL else job.room
        failures = rng.choices((0, 1, 3), (17, 2, 1))[0]
        planned.append(Submission(number, job.name, room, failures, rng.random()))
    return planned


async def submit_all(
    client: httpx.AsyncClient, planned: list[Submission], seconds: float, max_duration: float
) -> None:
    """Submit evenly over `seconds` tasks that run for at most `max_duration` seconds.

    A submission without a response stays in `planned` with an unknown result. A new submission with the same
    content is appended to `planned` and sent instead.
    """
    began = time.monotonic()
    waiting = list(enumerate(planned))[::-1]

    async def send() -> None:
        while waiting:
            index, submission = waiting.pop()
            await asyncio.sleep(began + seconds * index / len(planned) - time.monotonic())
            longest = min(max_duration, _MAX_DURATIONS.get(submission.job, max_duration))
            duration = submission.duration_share * longest
            await submit(client, submission, duration)
            while submission.task_id is None:
                await asyncio.sleep(_RETRY_SECONDS)
                submission = replace(submission, number=len(planned))
                planned.append(submission)
                await submit(client, submission, duration)

    await asyncio.gather(*[send() for _ in range(_SUBMITTERS)])


async def submit(
    client: httpx.AsyncClient, submission: Submission, duration: float = 0.0, release_file: str = ""
) -> None:
    """Submit once. Repeat only while the server responds that the job does not exist."""
    payload = {
        "number": submission.number,
        "seconds": duration,
        "failures": submission.failures,
        "release_file": release_file,
    }
    url = f"{PREFIX}/rooms/{submission.room}/tasks/{submission.job}"
    while True:
        submission.sent_at = time.time()
        try:
            response = await client.post(url, json={"payload": payload})
        except httpx.TransportError:
            return
        if response.status_code == 202:
            submission.response_at, submission.task_id = time.time(), response.json()["id"]
        elif response.status_code == 404:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        elif response.status_code < 500:
            raise RuntimeError(
                f"The server rejected submission {submission.number}: {response.status_code} {response.text}"
            )
        return
