"""The details of an attempt are kept for that attempt, once, in order and within bounds."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind
from pydantic_core import from_json, to_json
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, TIMEOUT, Replica
from seeds import prune_ended
from sqlalchemy import update

from zndraw_joblib.server.db.tables import AttemptDetailRecord, Task, TaskLogPart
from zndraw_joblib.server.process.ports import Identity, Page
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_details, rules_history, rules_task_actions, rules_tasks
from zndraw_joblib.server.queue.rules_details import MAX_ATTEMPTS, LogLimits
from zndraw_joblib.wire.events import TaskProgress, TaskStatusEvent, room_of
from zndraw_joblib.wire.history import TaskHistory, TaskLog
from zndraw_joblib.wire.messages import NamedTask, TaskResponse, TaskUpdateRequest, Verdict
from zndraw_joblib.wire.problems import Forbidden, StaleReport, TaskNotFound
from zndraw_joblib.wire.progress import Failure, LogLine, LogPart, Progress
from zndraw_joblib.wire.statuses import TaskStatus

AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
TWICE: dict[str, Any] = {"max_attempts": 2, "retry_on": ["error"], "backoff": {"base_seconds": 0}}
DETAILS, LOG = AttemptDetailRecord.__table__, TaskLogPart.__table__


def part(first: int, texts: Iterable[str]) -> LogPart:
    """Return a part of a log."""
    return LogPart(first=first, lines=[LogLine(at=AT, text=text) for text in texts])


def numbered(first: int, last: int) -> LogPart:
    """Return a part of a log, with the number of each line as its text."""
    return part(first, map(str, range(first, last + 1)))


async def report(
    replica: Replica, task: TaskResponse, *, by: Identity = OWNER, **fields: Any
) -> TaskResponse:
    """Report on the attempt of a task, by default without a status."""
    update = TaskUpdateRequest(**{"attempt": task.attempt, **fields})
    async with asyncio.timeout(TIMEOUT):
        return await replica.runtime.report(rules_tasks.Report(by, task.id, update))


async def log(
    replica: Replica, task_id: UUID, attempt: int | None = None, after: int = 0, limit: int = 1000
) -> TaskLog:
    """Return the log of an attempt."""
    return await replica.runtime.database.read(rules_details.log, task_id, attempt, after, limit)


async def texts(replica: Replica, task: TaskResponse, attempt: int | None = None) -> list[tuple[int, str]]:
    """Return the numbers and the texts of the lines of a log."""
    return [(line.n, line.text) for line in (await log(replica, task.id, attempt)).lines]


def lines(*spans: tuple[int, int]) -> list[tuple[int, str]]:
    """Return the lines of the log that `numbered` writes for these spans."""
    return [(n, str(n)) for first, last in spans for n in range(first, last + 1)]


async def history(replica: Replica, task: TaskResponse) -> TaskHistory:
    """Return the history of a task."""
    return await replica.runtime.database.read(rules_history.history, task_id=task.id)


async def test_progress_and_log_of_a_running_task(replica: Replica) -> None:
    """A reader sees the latest progress and all lines, and the room gets an event for each progress."""
    task = await replica.running(await replica.register())
    replica.events.clear()
    last = Progress(current=2, total=4, unit="frames", message="relax", data={"energy": None})
    lines = [LogLine(at=AT, text='a "quoted" \x00 ü\n', level="warning", source="stderr")]
    await report(replica, task, progress=Progress(current=1, message="start", unit="steps"))
    await report(replica, task, progress=last, log=LogPart(first=1, lines=lines))
    found = await replica.get(task.id)
    assert (found.progress, found.failure, found.status) == (last, None, TaskStatus.RUNNING)
    [line] = (await log(replica, task.id)).lines
    assert (line.n, LogLine(**line.model_dump())) == (1, lines[0])
    [detail] = (await history(replica, task)).attempts
    assert (detail.attempt, detail.progress, detail.log_lines, detail.log_dropped) == (1, last, 1, 0)
    assert detail.progress_at is not None
    sent = [(event.progress, event.attempt, room) for event, room in replica.events]
    assert sent == [(event.progress, 1, room_of("lab")) for event, _ in replica.events]
    assert [event.progress.current for event, _ in replica.events] == [1, 2]
    assert isinstance(replica.events[0].event, TaskProgress)


async def test_answers_without_progress_have_no_field_for_it(replica: Replica) -> None:
    """A task without details is serialised as before; so are the answers to a submit, claim and report."""
    job = await replica.register()
    submitted = await replica.submit(job)
    started = await replica.start(job.worker_id)
    silent = await replica.get(submitted.id)
    reported = await report(replica, started, progress=Progress(current=1))
    for answer in (submitted, started, silent, reported):
        assert not {"progress", "failure", "stored_result"} & answer.model_dump(mode="json").keys()
    assert (await replica.get(submitted.id)).model_dump(mode="json")["progress"]["current"] == 1


async def test_an_end_with_progress_and_a_log_reads_no_task(replica: Replica) -> None:
    """The statement of plain reports checks the fence; a stale report stores nothing."""
    tasks = [await replica.running(await replica.register()) for _ in range(2)]
    statements = replica.record_statements()
    for task, attempt in zip(tasks, (1, 2), strict=True):
        final = {"progress": Progress(current=4, total=4), "log": numbered(1, 2)}
        update = TaskUpdateRequest(status=TaskStatus.COMPLETED, attempt=attempt, **final)
        [result] = await replica.runtime.report_many([rules_tasks.Report(OWNER, task.id, update)])
        if attempt == 1:
            assert isinstance(result, TaskResponse)
            assert result.status is TaskStatus.COMPLETED
            assert not any(statement.sql.startswith("SELECT joblib_task") for statement in statements)
        else:
            assert isinstance(result, StaleReport)
    first, second = [await replica.get(task.id) for task in tasks]
    assert first.progress == Progress(current=4, total=4)
    assert second.progress is None


async def test_the_final_progress_is_announced_before_the_end(replica: Replica) -> None:
    """One report has the last progress, the last lines and the end; one event each, in this order."""
    task = await replica.running(await replica.register())
    replica.events.clear()
    final = {"progress": Progress(current=4, total=4), "log": numbered(1, 2)}
    ended = await report(replica, task, status=TaskStatus.COMPLETED, result=[1], **final)
    assert ended.status is TaskStatus.COMPLETED
    assert [type(event) for event, _ in replica.events] == [TaskProgress, TaskStatusEvent]
    assert (await replica.get(task.id)).progress == final["progress"]
    assert await texts(replica, task) == lines((1, 2))


async def test_each_attempt_keeps_its_own(replica: Replica) -> None:
    """After a retry by policy and one by hand, history and logs have each attempt's own."""
    job = await replica.register(**TWICE)
    task = await replica.running(job)
    for attempt in (1, 2, 3):
        failure = Failure(
            type="KeyError", traceback=f"job {attempt}", full_traceback=f"all {attempt}", notes=["n"]
        )
        fields = {"log": part(1, [f"line of {attempt}"]), "progress": Progress(current=attempt)}
        after = await report(replica, task, status="failed", error="KeyError: 1", failure=failure, **fields)
        found = await replica.get(task.id)
        assert found.failure == failure.model_copy(update={"full_traceback": ""})
        assert found.progress == fields["progress"]
        assert after.status is (TaskStatus.FAILED if attempt == 2 else TaskStatus.PENDING)
        if attempt == 2:
            await replica.act(rules_task_actions.retry, task.id)
        if attempt < 3:
            task = await replica.start(job.worker_id)
            assert (await replica.get(task.id)).progress is None
            assert await texts(replica, task) == []
    attempts = (await history(replica, task)).attempts
    assert [each.attempt for each in attempts] == [1, 2, 3]
    assert [each.failure.full_traceback for each in attempts if each.failure] == ["all 1", "all 2", "all 3"]
    assert [each.progress.current for each in attempts if each.progress] == [1, 2, 3]
    for attempt in (1, 2, 3):
        assert await texts(replica, task, attempt) == [(1, f"line of {attempt}")]


async def test_repeated_and_overlapping_parts_add_only_new_lines(replica: Replica) -> None:
    """Known numbers are ignored, in whole parts and in parts of them; missing numbers are a gap."""
    task = await replica.running(await replica.register())
    await report(replica, task, log=numbered(1, 3))
    for _ in range(2):
        await report(replica, task, log=numbered(1, 3))
        await report(replica, task, log=numbered(2, 5))
    assert await texts(replica, task) == lines((1, 5))
    await report(replica, task, log=numbered(9, 10))
    await report(replica, task, log=numbered(6, 7))
    assert await texts(replica, task) == lines((1, 5), (9, 10))
    found = await log(replica, task.id)
    assert (found.last, found.dropped, found.next) == (10, 3, None)
    rest = await log(replica, task.id, after=4, limit=2)
    assert ([line.n for line in rest.lines], rest.next) == ([5, 9], 9)
    assert [line.n for line in (await log(replica, task.id, after=9)).lines] == [10]
    assert (await log(replica, task.id, after=10)).lines == []


async def test_a_batch_joins_the_reports_of_a_task(replica: Replica) -> None:
    """Reports of one transaction are applied in order; a refused one changes nothing."""
    job = await replica.register()
    one, two = [await replica.running(job) for _ in range(2)]
    items = [
        rules_tasks.Report(
            OWNER, one.id, TaskUpdateRequest(progress=Progress(current=1), log=numbered(1, 2))
        ),
        rules_tasks.Report(OWNER, two.id, TaskUpdateRequest(progress=Progress(current=9), attempt=7)),
        rules_tasks.Report(OWNER, two.id, TaskUpdateRequest(log=numbered(1, 1))),
        rules_tasks.Report(
            OWNER, one.id, TaskUpdateRequest(progress=Progress(current=2), log=numbered(2, 3))
        ),
        rules_tasks.Report(OWNER, one.id, TaskUpdateRequest(status="completed", log=numbered(4, 4))),
    ]
    results = await replica.runtime.report_many(items)
    assert [type(result) for result in results] == [TaskResponse, StaleReport, *[TaskResponse] * 3]
    found = await replica.get(one.id)
    assert (found.progress, found.status) == (Progress(current=2), TaskStatus.COMPLETED)
    assert await texts(replica, one) == lines((1, 4))
    assert await texts(replica, two) == lines((1, 1))
    assert (await replica.get(two.id)).progress is None


async def test_a_stale_attempt_reports_nothing(replica: Replica) -> None:
    """After the task was claimed again, ended or released, the earlier attempt gets a 409."""
    job = await replica.register()
    task = await replica.running(job)
    fields = {"progress": Progress(current=1), "log": numbered(1, 1)}
    await replica.act(rules_task_actions.release, task.id)
    with pytest.raises(StaleReport) as caught:
        await report(replica, task, **fields)
    assert caught.value.problem.model_dump()["reason"] == "released"
    again = await replica.start(job.worker_id)
    with pytest.raises(StaleReport, match="attempt 1 does not hold it"):
        await report(replica, task, **fields)
    await report(replica, again, status="completed", log=numbered(1, 1))
    for attempt in (task, again):
        with pytest.raises(StaleReport):
            await report(replica, attempt, progress=Progress(current=2), log=numbered(2, 2))
    # The repeat of the report that ended the task is accepted, and adds nothing.
    await report(replica, again, status="completed", log=numbered(1, 5))
    assert await texts(replica, again) == lines((1, 1))
    assert len(await replica.rows(DETAILS)) == 1


async def test_only_the_worker_and_superusers_report(replica: Replica) -> None:
    """The submitter may cancel the task, without a log; others may not even that."""
    task = await replica.running(await replica.register())
    for by in (SUBMITTER, STRANGER):
        for status in (None, TaskStatus.CANCELLED):
            with pytest.raises(Forbidden):
                await report(replica, task, by=by, status=status, progress=Progress(current=1))
    await report(replica, task, by=ADMIN, progress=Progress(current=1))
    assert (await replica.get(task.id)).progress == Progress(current=1)


async def test_heartbeats_carry_progress_and_log(replica: Replica) -> None:
    """A heartbeat records the details of its held tasks; for others it has a verdict and records nothing."""
    job = await replica.register()
    held, lost = [await replica.running(job) for _ in range(2)]
    await replica.act(rules_task_actions.release, lost.id)
    named = [
        NamedTask(id=held.id, attempt=1, progress=Progress(current=1), log=numbered(1, 2)),
        NamedTask(id=held.id, attempt=2, progress=Progress(current=5), log=numbered(1, 5)),
        NamedTask(id=lost.id, attempt=1, progress=Progress(current=6), log=numbered(1, 6)),
    ]
    assert job.worker_id is not None
    for _ in range(2):
        answer = await replica.runtime.heartbeat(OWNER, job.worker_id, named)
        verdicts = [each.verdict for each in answer.tasks]
        assert verdicts == [Verdict.CONTINUE, Verdict.LOST, Verdict.LOST]
    assert await texts(replica, held) == lines((1, 2))
    assert (await replica.get(held.id)).progress == Progress(current=1)
    assert (await replica.get(lost.id)).progress is None


async def test_another_worker_of_the_owner_cannot_report_in_its_heartbeat(replica: Replica) -> None:
    """A heartbeat records only the details of tasks of its own worker."""
    job = await replica.register()
    task = await replica.running(job)
    other = await replica.worker()
    answer = await replica.runtime.heartbeat(
        OWNER, other, [NamedTask(id=task.id, attempt=1, log=numbered(1, 2))]
    )
    assert [each.verdict for each in answer.tasks] == [Verdict.LOST]
    assert await texts(replica, task) == []


@pytest.fixture
def small(settings: JobLibSettings) -> JobLibSettings:
    """Return the settings of the replica, with small logs."""
    settings.task_log_max_bytes, settings.task_log_max_lines = 4096, 50
    return settings


async def kept(replica: Replica) -> tuple[int, int]:
    """Return how many lines and bytes of logs are stored, and check the counts of the attempts."""
    parts, rows = await replica.rows(LOG), await replica.rows(DETAILS)
    sizes = [len(to_json(line["text"])) for each in parts for line in from_json(each.lines)]
    found = sum(each.last - each.first + 1 for each in parts), sum(sizes)
    assert found == (sum(row.log_lines for row in rows), sum(row.log_bytes for row in rows))
    return found


@pytest.mark.parametrize("count", [1, 7, 200])
async def test_a_log_keeps_its_newest_lines(replica: Replica, small: JobLibSettings, count: int) -> None:
    """Whatever the size of the parts, the newest lines stay, the oldest go, and their number is known."""
    task = await replica.running(await replica.register())
    for first in range(1, 400, count):
        await report(replica, task, log=numbered(first, first + count - 1))
        number, size = await kept(replica)
        assert number <= 50
        assert size <= 4096
    found = await log(replica, task.id)
    assert [line.n for line in found.lines] == list(range(found.dropped + 1, found.last + 1))
    assert found.last - found.dropped >= 25


async def test_a_log_is_bounded_by_bytes(replica: Replica, small: JobLibSettings) -> None:
    """Long lines take the place of several; a line that is larger than the whole log is dropped."""
    task = await replica.running(await replica.register())
    await report(replica, task, log=part(1, ["ü" * 400] * 3))
    await report(replica, task, log=part(4, ["\x00" * 8000, "short"]))
    found = await log(replica, task.id)
    assert [line.n for line in found.lines] == [1, 2, 3, 5]
    assert found.dropped == 1
    for first in range(6, 40):
        await report(replica, task, log=part(first, ["x" * 1000]))
        assert (await kept(replica))[1] <= 4096
    found = await log(replica, task.id)
    assert [line.n for line in found.lines] == list(range(found.dropped + 1, 40))


async def test_times_and_levels_take_no_room_in_a_log(replica: Replica, small: JobLibSettings) -> None:
    """More than half of the bytes are texts, also of short lines."""
    small.task_log_max_lines = 10_000
    task = await replica.running(await replica.register())
    for first in range(1, 1000, 100):
        await report(replica, task, log=part(first, ["x" * 18] * 100))
    number, size = await kept(replica)
    assert 2048 < size <= 4096
    assert size == 20 * number


async def test_the_bound_of_one_log_leaves_others(replica: Replica, small: JobLibSettings) -> None:
    """In one transaction, each log loses only its own oldest lines."""
    job = await replica.register()
    found = [await replica.running(job) for _ in range(3)]
    updates = [numbered(1, 200), numbered(1, 5), numbered(1, 200)]
    for start in (0, 200):
        items = [
            rules_tasks.Report(
                OWNER, task.id, TaskUpdateRequest(log=numbered(start + 1, start + len(each.lines)))
            )
            for task, each in zip(found, updates, strict=True)
        ]
        assert all(isinstance(each, TaskResponse) for each in await replica.runtime.report_many(items))
    assert await texts(replica, found[1]) == lines((1, 5), (201, 205))
    for task in (found[0], found[2]):
        assert (await log(replica, task.id)).lines[-1].n == 400
    await kept(replica)


async def test_a_task_keeps_the_details_of_its_last_attempts(replica: Replica) -> None:
    """With every new attempt that has details, those of the oldest are deleted."""
    job = await replica.register()
    task = await replica.running(job)
    for _ in range(MAX_ATTEMPTS + 2):
        await report(replica, task, progress=Progress(current=task.attempt), log=part(1, [str(task.attempt)]))
        await replica.act(rules_task_actions.release, task.id)
        task = await replica.start(job.worker_id)
    await report(replica, task, progress=Progress(current=0))
    numbers = [each.attempt for each in (await history(replica, task)).attempts]
    assert numbers == list(range(4, task.attempt + 1))
    assert len(numbers) == MAX_ATTEMPTS
    assert {row.attempt for row in await replica.rows(LOG)} == set(range(4, task.attempt))


async def test_a_long_log_is_read_in_parts(replica: Replica, settings: JobLibSettings) -> None:
    """Each answer has at most about 1 MiB; the answers together have each line once."""
    settings.task_log_max_bytes = 8 * 1024**2
    task = await replica.running(await replica.register())
    for first in range(1, 301, 100):
        await report(replica, task, log=part(first, ["x" * 8000] * 100))
    numbers: list[int] = []
    after: int | None = 0
    requests = 0
    while after is not None:
        found = await log(replica, task.id, after=after)
        assert sum(len(line.text) for line in found.lines) < 2 * 1024**2
        numbers += [line.n for line in found.lines]
        after, requests = found.next, requests + 1
    assert (numbers, requests) == (list(range(1, 301)), 3)


async def test_the_log_of_an_attempt_that_was_not(replica: Replica) -> None:
    """It is an error, unlike the empty log of an attempt without details."""
    job = await replica.register()
    task = await replica.submit(job)
    assert (await log(replica, task.id)).attempt == 0
    await replica.start(job.worker_id)
    assert (await log(replica, task.id, 1)).lines == []
    with pytest.raises(TaskNotFound, match="attempt 2; it was claimed 1 times"):
        await log(replica, task.id, 2)


async def test_pages_have_progress(replica: Replica) -> None:
    """A page of tasks has the details of the current attempt of each."""
    job = await replica.register()
    one, two = [await replica.running(job) for _ in range(2)]
    await report(replica, one, progress=Progress(current=1))
    await replica.act(rules_task_actions.release, one.id)
    await replica.start(job.worker_id)
    await report(replica, two, progress=Progress(current=2))
    page = await replica.runtime.database.read(rules_tasks.page, "lab", None, part=Page(50, 0))
    assert {task.id: task.progress for task in page.items} == {one.id: None, two.id: Progress(current=2)}


async def test_pruned_tasks_take_it_with_them(replica: Replica) -> None:
    """Pruning a task deletes the logs and the progress of all its attempts, and of no other task."""
    job = await replica.register(**TWICE)
    task, other = [await replica.running(job) for _ in range(2)]
    for each in (task, other):
        await report(replica, each, progress=Progress(current=1), log=numbered(1, 3))
    await report(replica, task, status="failed", error="once", log=numbered(4, 4))
    again = await replica.start(job.worker_id)
    await report(replica, again, status="completed", log=numbered(1, 1))
    assert await prune_ended(replica.runtime.write) == [1]
    for table in (DETAILS, LOG):
        assert len(await replica.rows(table)) == 1
    assert await texts(replica, other) == lines((1, 3))


async def test_tasks_with_long_logs_are_pruned_fewer_at_a_time(replica: Replica) -> None:
    """A transaction deletes tasks with about 50,000 lines of logs, and at least one task."""
    job = await replica.register()
    found = [await replica.running(job) for _ in range(5)]
    for task, count in zip(found, (1, 60_000, 30_000, 10_000, 10_001), strict=True):
        await report(replica, task, progress=Progress(current=1), log=numbered(1, 1), status="completed")
        [seq] = [row.seq for row in await replica.rows(Task) if row.id == task.id]
        await replica.execute(update(DETAILS).where(DETAILS.c.task_seq == seq).values(log_lines=count))
    assert await prune_ended(replica.runtime.write) == [1, 1, 2, 1]
    assert await replica.rows(DETAILS) == await replica.rows(LOG) == []


@every_kind
async def test_concurrent_reports_of_one_attempt_lose_nothing(pair: Sequence[Replica]) -> None:
    """Heartbeats and reports that arrive at two servers at the same time keep the counts right."""
    job = await pair[0].register()
    task = await pair[0].running(job)
    assert job.worker_id is not None
    beats = [
        pair[n % 2].runtime.heartbeat(
            OWNER,
            job.worker_id,
            [NamedTask(id=task.id, attempt=1, log=numbered(1, n), progress=Progress(current=n))],
        )
        for n in range(1, 11)
    ]
    reports = [
        report(pair[n % 2], task, log=numbered(1, n), progress=Progress(current=n)) for n in range(1, 11)
    ]
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*beats, *reports)
    assert await texts(pair[0], task) == lines((1, 10))
    assert (await kept(pair[1]))[0] == 10


def test_a_report_has_content(subtests: pytest.Subtests) -> None:
    """An empty report is refused, and a failure belongs to the status failed."""
    text = r"needs a status|only a report with the status 'failed'"
    for fields in ({}, {"error": "x"}, {"failure": {"type": "E"}, "status": "completed"}):
        with subtests.test(fields=fields), pytest.raises(ValueError, match=text):
            TaskUpdateRequest.model_validate(fields)


def test_the_data_of_progress_is_bounded() -> None:
    """The error names the size and the bound."""
    with pytest.raises(ValueError, match="data has 16395 bytes of JSON; at most 16384"):
        Progress(data={"text": "x" * 16_384})


def test_the_limits_come_from_the_settings() -> None:
    """A log keeps as much as the settings allow."""
    assert LogLimits.of(JobLibSettings(task_log_max_lines=7, task_log_max_bytes=2048)) == LogLimits(7, 2048)
    assert LogLimits.of(JobLibSettings()) == LogLimits()
