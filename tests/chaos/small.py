"""A small stage, and what the tests do on it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from chaos import jobs, journal
from chaos.checker import check
from chaos.evidence import Submission
from chaos.journal import Call, Effect
from chaos.load import submit
from chaos.stage import Stage

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
OpenStage = Callable[..., AbstractAsyncContextManager[Stage]]


class Kept:
    """A database that the test's own fixtures have made."""

    can_restart = False

    def __init__(self, url: str) -> None:
        self.url = url

    def restart(self, mode: str) -> None:
        """Do nothing: others use the server too."""

    def deadlocks(self) -> int:
        """Return 0: others use its log too."""
        return 0


async def told(on: Stage, text: str, since: int | None = None) -> str:
    """Wait until the server says something, from now on."""
    return await on.server.says(text, on.server.lines_said if since is None else since)


async def until_noted(on: Stage, is_so: Callable[[list[Effect], list[Call]], bool]) -> None:
    """Wait until the workers have written something down."""
    async with asyncio.timeout(20):
        while not is_so(*journal.read(on.folder)):  # noqa: ASYNC110 - a file tells no event
            await asyncio.sleep(0.02)


async def until_begun(on: Stage, *attempts: tuple[str, int]) -> None:
    """Wait until attempts of tasks are worked on."""
    await until_noted(on, lambda effects, _: {(it.task, it.attempt) for it in effects}.issuperset(attempts))


async def begin(on: Stage, job: jobs.Job, count: int, gate: Path) -> list[Submission]:
    """Submit tasks that go on until `gate` is there, and wait until all are worked on."""
    given = [Submission(number, job.name, jobs.ROOMS[0]) for number in range(count)]
    for submission in given:
        await submit(on.client, submission, gate=str(gate))
    await until_begun(on, *[(submission.task or "", 1) for submission in given])
    return given


async def broken(on: Stage, given: list[Submission]) -> set[str]:
    """Wait for the tasks' ends; return the rules that the checker finds broken."""
    assert await on.all_end(given, 10)
    await asyncio.to_thread(on.pool.stop)
    violations = check(await on.evidence(given))
    print(*violations, sep="\n")
    return {violation.rule for violation in violations}
