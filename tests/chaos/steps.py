"""The steps that the tests of this folder share."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from chaos import jobs
from chaos.checker import check
from chaos.environment import Environment
from chaos.records import ExecutionEvent, Submission, WorkerRequest, read_worker_logs
from chaos.workload import submit
from waiting import until

OpenEnvironment = Callable[..., AbstractAsyncContextManager[Environment]]


async def wait_for_output(environment: Environment, text: str) -> str:
    """Return the next line of the server that contains `text`."""
    return await environment.server.wait_for_output(text, len(environment.server.output))


async def wait_for_logs(
    environment: Environment, condition: Callable[[list[ExecutionEvent], list[WorkerRequest]], bool]
) -> None:
    """Wait until the logs of the workers fulfil a condition."""
    await until(lambda: condition(*read_worker_logs(environment.log_folder)), interval=0.02)


async def wait_until_started(environment: Environment, *attempts: tuple[str | None, int]) -> None:
    """Wait until workers execute attempts of tasks."""
    await wait_for_logs(
        environment, lambda executions, _: {(it.task_id, it.attempt) for it in executions} >= set(attempts)
    )


async def start_tasks(
    environment: Environment, job: jobs.Job, count: int, release_file: Path
) -> list[Submission]:
    """Submit tasks that run until `release_file` exists, and wait until workers execute all of them."""
    submissions = [Submission(number, job.name, jobs.ROOMS[0]) for number in range(count)]
    for submission in submissions:
        await submit(environment.client, submission, release_file=str(release_file))
    await wait_until_started(environment, *[(submission.task_id, 1) for submission in submissions])
    return submissions


async def broken_rules(environment: Environment, submissions: list[Submission]) -> set[str]:
    """Wait until the tasks have ended; return the rules that the checker reports as violated."""
    assert await environment.wait_until_ended(submissions, 30)
    await asyncio.to_thread(environment.workers.stop)
    violations = check(await environment.collect(submissions))
    print(*violations, sep="\n")
    return {violation.rule for violation in violations}
