"""No request reads or sorts more rows than it needs: its cost does not grow with backlog or history.

The tests explain the statements that the code executes; a full scan of the tasks fails a test.
"""

import re
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from replica import ADMIN, OWNER, SUBMITTER
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from plans.conftest import on_postgresql
from plans.explained import FEW, Explainer, Plan
from plans.seeding import BIG, IDLE, JOBS, LAB, QUIET, RARE, TASKS, WORKERS, job_id, task_id, worker_id
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.host_sessions import from_connection
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.process.ports import Page, RequestKey
from zndraw_joblib.server.queue import (
    rules_claims,
    rules_history,
    rules_idempotency,
    rules_internal,
    rules_retention,
    rules_sweep,
    rules_tasks,
    rules_transitions,
    rules_workers,
    sql_room_queues,
    sql_tasks,
    sql_transitions,
    sql_unique,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_claims import claim_with_one_statement
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.wire.messages import NamedTask, TaskUpdateRequest
from zndraw_joblib.wire.names import GLOBAL, JobName
from zndraw_joblib.wire.statuses import TaskStatus

PENDING, HELD = "ix_joblib_task_queue", "ix_joblib_task_held"
ROOM = "ix_joblib_task_room_status"
JOB_ROOM = "ix_joblib_task_job_room"
BY_ID = {"sqlite_autoindex_joblib_task_1", "uq_joblib_task_id"}
KEY = {"PRIMARY KEY", "pk_joblib_task"} | BY_ID
SECOND = timedelta(seconds=1)


def name(number: int) -> JobName:
    """Return the name of a job."""
    return JobName(GLOBAL, "modifiers", f"J{number}")


def describe(plan: Plan) -> str:
    """Return the statement and its plan for a failure message."""
    return f"{plan.statement}\n{plan.text}"


def assert_reads(plans: list[Plan], *indexes: set[str] | str) -> None:
    """Check that only these indexes read the tasks, and that no large result is sorted.

    Rows found by key, and held tasks, are few and may be sorted.
    """
    allowed = set().union(*[{index} if isinstance(index, str) else index for index in indexes])
    for plan in plans:
        used = plan.by("joblib_task")
        assert used <= allowed, describe(plan)
        assert used <= KEY | {HELD} or plan.sorted_rows <= FEW, describe(plan)
    assert any(plan.by("joblib_task") for plan in plans)


def assert_bounded(plans: list[Plan]) -> None:
    """Check that no plan scans all workers or all links, and none joins all of them."""
    for plan in plans:
        assert not plan.materialises, describe(plan)
        for table in ("joblib_worker", "joblib_worker_job"):
            assert None not in plan.by(table), describe(plan)


def with_events(work: Any, kind: str, expected: str = "expected_events") -> Any:
    """Return work whose plain statements of a kind are those of watched rooms, or those that count ends."""

    async def expect_events(tx: Transaction) -> Any:
        tx.expected_events = {kind: 1} if expected == "expected_events" else {}
        tx.expected_counts = expected == "expected_counts"
        return await work(tx)

    return expect_events


async def test_a_claim_reads_the_head_of_its_queue(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """A worker of one job reads the head of that queue, for any length, and its own links and tasks."""
    for most in (1, 256):
        with subtests.test(most=most):
            for number in (BIG, RARE, IDLE):
                item = rules_claims.Claim(
                    OWNER, worker_id(number + JOBS), 15, uuid4(), task_limit=most, start=True
                )
                plans = await explainer.plans(partial(rules_claims.claim, items=[item]))
                assert_bounded(plans)
                if number != IDLE:
                    assert_reads(plans, PENDING, HELD, KEY)


@on_postgresql
async def test_a_plain_claim_reads_the_head_of_its_queue(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """Its one statement reads that head, the held tasks of its workers, and tasks by their keys."""
    for most, claimants, has_events in product((1, 100), (1, 16), (False, True)):
        with subtests.test(most=most, claimants=claimants, has_events=has_events):
            for number in (BIG, RARE, IDLE):
                ids = [worker_id(number + JOBS * turn) for turn in range(1, claimants + 1)]
                items = [
                    rules_claims.Claim(OWNER, worker, 15, uuid4(), task_limit=most, start=True)
                    for worker in ids
                ]
                work = partial(claim_with_one_statement, items=items)
                plans = await explainer.plans(with_events(work, "claim") if has_events else work)
                assert len({plan.statement for plan in plans}) == 1
                assert_reads(plans, PENDING, HELD, "uq_joblib_task_id")
                assert_bounded(plans)
                for plan in plans:
                    assert {PENDING, HELD, "uq_joblib_task_id"} == plan.by("joblib_task"), describe(plan)


@on_postgresql
async def test_a_claim_passes_over_few_tasks_that_left_its_queue(engine: AsyncEngine) -> None:
    """The index has them while a transaction may see them in the queue, such as a backup, or this one."""
    one = rules_claims.Claim(OWNER, worker_id(BIG + JOBS), 15)
    many = one._replace(task_limit=rules_claims.MAX_CLAIMED)
    async with engine.connect() as connection:
        tx = from_connection(connection, None)

        async def pages_read(items: list[rules_claims.Claim]) -> int:
            before = (await connection.execute(_PAGES_READ)).scalar_one()
            assert await claim_with_one_statement(tx, items)
            return int((await connection.execute(_PAGES_READ)).scalar_one() - before)

        for _ in range(3):
            assert await pages_read([many])
        for items in ([one], [one, one]):
            # The 6,000 tasks have 65 pages, the 4,096 of a block 45.
            assert await pages_read(items) < 50
        await connection.rollback()


_PAGES_READ = text(f"SELECT pg_stat_get_xact_blocks_fetched('{PENDING}'::regclass)")


async def test_a_move_finds_its_tasks_by_their_keys(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """Also if there are many tasks of a status and an attempt of which the statistics know none."""
    for count in (16, 1000):
        with subtests.test(count=count):

            async def move(tx: Transaction) -> None:
                seqs = range(61_001, 61_001 + count)
                await tx.execute(update(Task).where(column.between(seqs[0], seqs[-1])).values(attempt=7))
                found = await sql_tasks.lock(tx, [task_id(seq) for seq in seqs])
                moves = [
                    (task, rules_transitions.released(task, f"for reason {task.seq}"))
                    for task in found.values()
                ]
                await sql_transitions.move(tx, moves)

            column = Task.__table__.c.seq
            plans = await explainer.plans(move)
            written = [
                plan for plan in plans if re.search(r"UPDATE joblib_task SET .*error=", plan.statement)
            ]
            assert written
            assert_reads(written, {"PRIMARY KEY", "pk_joblib_task"})


async def test_a_dispatcher_reads_held_tasks_and_the_heads_of_its_queues(explainer: Explainer) -> None:
    """Due dispatches are found among the held tasks, the others at the heads of queues."""
    names = [str(name(number)) for number in (BIG, RARE)]
    plans = await explainer.plans(
        partial(rules_internal.claim, names=names, limit=10, order=ClaimOrder(), exclusive_start=True)
    )
    assert_reads(plans, HELD, PENDING, KEY)


async def test_a_claim_over_many_jobs_merges_their_queues(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """A worker of all jobs reads the head of each queue; the backlog is not sorted."""
    for most in (1, 256):
        with subtests.test(most=most):
            item = rules_claims.Claim(OWNER, worker_id(0), 15, task_limit=most)
            plans = await explainer.plans(partial(rules_claims.claim, items=[item]))
            assert_reads(plans, PENDING, KEY)
            assert_bounded(plans)


async def test_a_lone_claim_over_many_jobs_reads_their_heads(explainer: Explainer) -> None:
    """It reads the first task of each queue, and no backlog; on PostgreSQL with one statement."""
    item = rules_claims.Claim(OWNER, worker_id(0), 15, uuid4(), start=True)
    plans = await explainer.plans(partial(claim_with_one_statement, items=[item]))
    assert_reads(plans, PENDING, HELD, KEY, "ix_joblib_task_expiring")
    assert_bounded(plans)
    if explainer.is_postgresql:
        assert len({plan.statement for plan in plans}) == 1
        assert not any("pk_joblib_task" in plan.by("joblib_task") for plan in plans)


async def test_a_lone_claim_over_many_queues_reads_the_front_of_all(explainer: Explainer) -> None:
    """If the worker had many queues at its last claim, it reads no queue but that of its task."""
    item, sets = rules_claims.Claim(OWNER, worker_id(0), 15, uuid4(), start=True), rules_claims.JobSets()
    sets.record_many_queues(item.worker_id, is_many=True)
    plans = await explainer.plans(partial(claim_with_one_statement, items=[item], sets=sets))
    assert_bounded(plans)
    for plan in plans:  # SQLite sorts the 64 rows that it has read
        allowed = {PENDING, HELD, "ix_joblib_task_expiring", "ix_joblib_task_front"} | KEY
        assert plan.by("joblib_task") <= allowed, describe(plan)
    assert any("ix_joblib_task_front" in plan.by("joblib_task") for plan in plans)


async def test_a_digest_of_jobs_reads_the_links_of_its_workers(explainer: Explainer) -> None:
    """And the names of the jobs are found by these links."""
    workers = [worker_id(number) for number in range(16)]
    for read in (sql_workers.job_digests, sql_workers.served_jobs):
        assert_bounded(await explainer.plans(partial(read, worker_ids=workers)))


async def test_a_batch_of_claims_reads_as_many_tasks_as_it_claims(explainer: Explainer) -> None:
    """Sixteen claims at once, of one job and of many, read the heads of their queues."""
    for crowd in ([JOBS * turn for turn in range(1, 17)], list(range(16))):
        items = [rules_claims.Claim(OWNER, worker_id(number), 15) for number in crowd]
        plans = await explainer.plans(partial(rules_claims.claim, items=items))
        assert_reads(plans, PENDING, KEY)
        assert_bounded(plans)


async def test_a_claim_by_room_reads_a_few_rooms(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """It reads the next rooms along an index, their first tasks, and how many of their tasks are held."""
    for order in (ClaimOrder(is_fair=True), ClaimOrder(room_cap=50), ClaimOrder(True, 50)):
        with subtests.test(order=order):
            item = rules_claims.Claim(OWNER, worker_id(BIG + JOBS), 15, None, order)
            plans = await explainer.plans(partial(rules_claims.claim, items=[item]))
            assert_reads(plans, PENDING, "ix_joblib_task_turn", ROOM, KEY, HELD)
            assert_bounded(plans)
            for plan in plans:
                assert None not in plan.by("joblib_room_queue"), describe(plan)
            assert len({plan.statement for plan in plans}) <= 16


async def test_a_free_slot_reads_no_backlog(explainer: Explainer) -> None:
    """The jobs with tasks in a room are found in the queues of rooms, not among the tasks."""
    for plan in await explainer.plans(partial(sql_room_queues.jobs_queued_in, rooms=[LAB, QUIET])):
        assert plan.by("joblib_task") == set(), describe(plan)


async def test_a_submission_reads_no_task(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """It reads its job and inserts its rows; the length of the queue is a stored count."""
    for count in (1, 16):
        with subtests.test(count=count):
            items = [
                rules_tasks.Submission(SUBMITTER, LAB, name(turn % JOBS), {"angle": 3})
                for turn in range(count)
            ]
            for plan in await explainer.plans(partial(rules_tasks.submit, items=items)):
                assert plan.by("joblib_task") == set(), describe(plan)


async def test_idempotency_keys_are_found_by_their_digest(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """A submit with a key reads only its own row of the keys; the sweeper reads the oldest ones."""
    for count in (1, 16):
        with subtests.test(count=count):
            keys = [RequestKey(uuid4(), uuid4(), timedelta(days=1), "ada") for _ in range(count)]
            items = [rules_tasks.Submission(SUBMITTER, LAB, name(0), {"angle": 3}, key=key) for key in keys]
            plans = await explainer.plans(partial(rules_idempotency.submit, items=items))
            plans += await explainer.plans(
                partial(
                    rules_retention.prune, retention=rules_retention.KEYS, keep=timedelta(days=1), after=None
                )
            )
            surplus = rules_retention.SurplusKeys({"ada": 1})
            plans += await explainer.plans(partial(rules_retention.prune_surplus_keys, surplus=surplus))
            assert any(plan.by("joblib_idempotency_key") for plan in plans)
            for plan in plans:
                assert None not in plan.by("joblib_idempotency_key"), describe(plan)
                assert plan.by("joblib_task") == set(), describe(plan)


async def test_a_report_finds_its_tasks_by_their_keys(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """Start, end and cancellation read and write only their own rows."""
    for count in (1, 16, 256):
        with subtests.test(count=count):
            seqs = [60_001, 61_500, TASKS - 500] * 86
            statuses = [TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.CANCELLED] * 86
            items = [
                rules_tasks.Report(ADMIN, task_id(seq + turn), TaskUpdateRequest(status=status))
                for turn, (seq, status) in enumerate(zip(seqs, statuses, strict=True))
            ]
            for first in range(3):
                plans = await explainer.plans(partial(rules_tasks.report, items=items[first : first + count]))
                assert_reads(plans, KEY)
                assert_bounded(plans)


async def test_a_plain_report_finds_its_tasks_by_their_keys(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """Its one statement reads and writes only their own rows."""
    for wants_body, count, expected in product(
        (False, True), (1, 256), ("", "expected_events", "expected_counts")
    ):
        with subtests.test(wants_body=wants_body, count=count, expected=expected):
            items = [
                rules_tasks.Report(
                    OWNER, task_id(61_500 + turn), TaskUpdateRequest(status=status), wants_body=wants_body
                )
                for turn in range(count)
                for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED)
            ]
            work = partial(rules_idempotency.report, items=items)
            plans = await explainer.plans(with_events(work, "report", expected) if expected else work)
            plans = [plan for plan in plans if plan.statement == plans[0].statement]
            counts = set().union(*(plan.by("joblib_group_count") for plan in plans))
            counted = {"pk_joblib_group_count"} if explainer.is_postgresql else set()
            assert counts == (counted if expected == "expected_counts" else set())
            assert "UPDATE joblib_task" in plans[0].statement
            assert_reads(plans, KEY)
            assert_bounded(plans)
            assert not any(None in plan.by("joblib_job") for plan in plans if not explainer.is_postgresql)


async def test_a_heartbeat_finds_its_workers_by_their_keys(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """A batch of heartbeats reads and writes only the rows of its workers."""
    for count in (1, 16):
        with subtests.test(count=count):
            items = [rules_workers.Heartbeat(OWNER, worker_id(turn), 15) for turn in range(count)]
            plans = await explainer.plans(partial(rules_workers.heartbeat, items=items))
            assert_bounded(plans)
            assert not any(plan.by("joblib_task") for plan in plans)


async def test_a_heartbeat_finds_the_tasks_that_it_names_by_their_keys(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """One statement reads the held tasks of a batch's workers, and one the other tasks that it names."""
    for count in (1, 16):
        with subtests.test(count=count):
            named = [NamedTask(id=task_id(60_001 + turn), attempt=1) for turn in range(3 * count)]
            items = [
                rules_workers.Heartbeat(OWNER, worker_id(turn), 15, named[3 * turn : 3 * turn + 3])
                for turn in range(count)
            ]
            plans = await explainer.plans(partial(rules_workers.heartbeat, items=items))
            assert_reads(plans, HELD, KEY)
            assert_bounded(plans)
            assert len({plan.statement for plan in plans if plan.by("joblib_task")}) == 2


async def test_a_removal_reads_only_the_held_tasks_of_its_worker(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """The removal finds its tasks among the held ones and does not read its history."""
    for count in (1, 200):
        with subtests.test(count=count):
            ids = [worker_id(turn) for turn in range(count)]
            plans = await explainer.plans(partial(rules_workers.retire, worker_ids=ids))
            assert_reads(plans, HELD, KEY)
            if count == 1:
                assert_bounded(plans)


async def test_stale_workers_are_found_by_their_heartbeats(
    explainer: Explainer, engine: AsyncEngine, subtests: pytest.Subtests
) -> None:
    """A sweep reads one batch of stale workers in the order of their heartbeats."""
    for stale in (0, 1, 300, WORKERS):
        with subtests.test(stale=stale):
            column = Task.__table__.metadata.tables["joblib_worker"].c.last_heartbeat
            async with engine.connect() as connection:
                born = (await connection.execute(select(func.min(column)))).scalar_one()
            size = rules_sweep.batch_size(is_sqlite=engine.dialect.name == "sqlite")
            find = partial(sql_workers.lock_if_stale, cutoff=born + stale * SECOND, limit=size)
            for plan in await explainer.plans(find):
                assert plan.by("joblib_worker") == {"ix_joblib_worker_last_heartbeat"}, describe(plan)


SWEEPS = {
    "stuck": partial(rules_sweep.fail_stuck, timeout=timedelta(days=1)),
    "abandoned": rules_sweep.recover_abandoned,
}


async def test_a_sweep_looks_for_tasks_among_the_held_ones(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """Stuck and abandoned tasks are found without reading the history."""
    for what, sweep in SWEEPS.items():
        with subtests.test(what=what):
            plans = await explainer.plans(sweep)
            assert_reads(plans, HELD, KEY, JOB_ROOM)
            for plan in plans:
                assert plan.by("joblib_task") <= KEY or HELD in plan.by("joblib_task"), describe(plan)


async def test_future_heartbeats_are_found_by_their_index(explainer: Explainer) -> None:
    """Heartbeats in the future are found by the index, like stale ones."""
    plans = await explainer.plans(partial(rules_sweep.retire_stale, timeout=timedelta(days=365)))
    worker_plans = [plan for plan in plans if "FROM joblib_worker" in plan.statement]
    assert len(worker_plans) >= 2
    for plan in worker_plans:
        if plan.by("joblib_worker"):
            assert "ix_joblib_worker_last_heartbeat" in plan.by("joblib_worker"), describe(plan)


async def test_a_page_of_a_room_is_read_in_its_order(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """An index returns the rows in the order of the page; nothing is sorted."""
    for room in (LAB, QUIET, "nowhere"):
        for status in (None, TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.COMPLETED):
            with subtests.test(room=room, status=status):
                index = "ix_joblib_task_room" if status is None else "ix_joblib_task_room_status"
                for part in (Page(50, 0), Page(50, 1000)):
                    plans = await explainer.plans(
                        partial(sql_tasks.page, room_id=room, status=status, part=part)
                    )
                    assert_totals(plans, status)
                    assert_reads([plan for plan in plans if "count(*)" not in plan.statement], index)


def assert_totals(plans: list[Plan], status: TaskStatus | None) -> None:
    """Check that the total is a sum of kept counts, and that only held tasks are counted."""
    totals = [plan for plan in plans if "joblib_room_count" in plan.statement or "count(*)" in plan.statement]
    assert totals
    for plan in totals:
        assert None not in plan.by("joblib_room_count"), describe(plan)
        if status in {None, TaskStatus.PENDING}:
            assert plan.by("joblib_task") == set(), describe(plan)
        else:
            # With statistics, PostgreSQL may choose the index of a job with few tasks in the room.
            assert plan.by("joblib_task") <= {HELD, ROOM, JOB_ROOM}, describe(plan)
            assert "SEARCH joblib_task USING INDEX ix_joblib_task_job_room" not in plan.text, describe(plan)
            assert re.search(r"status IN \('claimed', 'running'\)|'running'\)", plan.statement)


async def test_a_page_of_a_jobs_other_tasks_reads_no_backlog(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """The tasks of a job that are not pending come from the tasks of that status in the room."""
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
        for number in (BIG, RARE, IDLE):
            with subtests.test(status=status, number=number):
                work = partial(
                    sql_tasks.page, room_id=LAB, status=status, job_ids=[job_id(number)], part=Page(50, 0)
                )
                plans = await explainer.plans(work)
                assert_totals(plans, status)
                # With statistics, PostgreSQL chooses by the number of that job's tasks of that status.
                assert_reads(plans, ROOM, HELD, *([JOB_ROOM] if explainer.is_postgresql else []))


async def test_a_page_of_a_job_reads_that_jobs_tasks(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """The tasks of a job in a room come from an index that begins with both, or from the job's queue."""
    for status in (None, TaskStatus.PENDING):
        for number in (BIG, RARE, IDLE):
            with subtests.test(status=status, number=number):
                work = partial(
                    sql_tasks.page, room_id=LAB, status=status, job_ids=[job_id(number)], part=Page(50, 0)
                )
                plans = await explainer.plans(work)
                assert_totals(plans, status)
                assert_reads(plans, JOB_ROOM, *([] if status is None else [PENDING, ROOM]))


async def test_a_page_of_several_versions_of_a_job_reads_the_first_tasks_of_each(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """Of each version the index returns as many as the page may have; only these are sorted."""
    for status in (None, TaskStatus.PENDING, TaskStatus.COMPLETED):
        for offset in (0, 10):
            with subtests.test(status=status, offset=offset):
                work = partial(
                    sql_tasks.page,
                    room_id=LAB,
                    status=status,
                    job_ids=[job_id(BIG), job_id(RARE), job_id(IDLE)],
                    part=Page(50, offset),
                )
                plans = await explainer.plans(work)
                assert_totals(plans, status)
                if status is TaskStatus.COMPLETED:
                    assert_reads(plans, ROOM, HELD, *([JOB_ROOM] if explainer.is_postgresql else []))
                    continue
                for plan in plans:
                    if "UNION ALL" in plan.statement:
                        assert plan.by("joblib_task") <= {JOB_ROOM, PENDING, ROOM} | KEY, describe(plan)
                        # SQLite does not say that it sorts the first tasks only.
                        assert not explainer.is_postgresql or plan.sorted_rows <= FEW, describe(plan)


async def test_the_tasks_that_hold_keys_are_found_by_these(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """A submit with a unique key, and a batch of them, read their holders by the index of the keys."""
    for count in (1, 1000):
        with subtests.test(count=count):
            ids = [uuid4() for _ in range(count)]
            plans = await explainer.plans(partial(sql_unique.holders, ids=ids, most_bytes=1000))
            assert_reads(plans, "uq_joblib_task_unique_id")


async def test_a_position_is_counted_in_the_queue(explainer: Explainer, subtests: pytest.Subtests) -> None:
    """The rank of a task is a sum of the counts of blocks, and a count of few tasks in its own block.

    PostgreSQL may also read the block's range of the primary key.
    """
    for seq in (62_001, 80_001, TASKS - 10):
        with subtests.test(seq=seq):
            plans = await explainer.plans(partial(rules_tasks.get, task_id=task_id(seq)))
            assert_no_full_scan(plans)
            assert_ranks(plans)


def assert_ranks(plans: list[Plan]) -> None:
    """Check that the counts of blocks, and the tasks of a block, are read by ranges of an index."""
    ranks = [plan for plan in plans if "joblib_queue_block" in plan.statement]
    assert ranks
    for plan in ranks:
        assert None not in plan.by("joblib_queue_block"), describe(plan)
        for line in plan.text.splitlines():
            if "SEARCH joblib_task" in line:
                assert "(job_id=? AND lane=? AND seq>? AND seq<?)" in line, describe(plan)


async def test_the_positions_of_a_page_are_counted_in_their_queues(explainer: Explainer) -> None:
    """The ranks of a page's tasks are read from the queues, between the first and the last of them."""
    plans = await explainer.plans(partial(rules_tasks.page, room_id=LAB, status=None, part=Page(50, 0)))
    assert_no_full_scan(plans)
    assert_ranks(plans)


def assert_no_full_scan(plans: list[Plan]) -> None:
    """Check that no plan scans the whole table."""
    assert any("joblib_task" in plan.text for plan in plans)
    for plan in plans:
        assert "Seq Scan joblib_task (" not in plan.text, describe(plan)
        assert not re.search(r"SCAN joblib_task(?! USING)", plan.text), describe(plan)


async def test_an_explanation_reads_no_backlog_and_no_history(
    explainer: Explainer, subtests: pytest.Subtests
) -> None:
    """It reads the held tasks, the head of the queue, and the few tasks of the job before it."""
    for seq in (62_001, 80_001, TASKS - 10):
        with subtests.test(seq=seq):
            work = partial(rules_history.explain, task_id=task_id(seq), order=ClaimOrder(room_cap=1))
            plans = await explainer.plans(work)
            assert_no_full_scan(plans)
            assert_ranks(plans)
            of_explanation = [plan for plan in plans if "joblib_queue_block" not in plan.statement]
            assert_reads(of_explanation, HELD, KEY, PENDING, JOB_ROOM, ROOM)
            assert any(JOB_ROOM in plan.by("joblib_task") for plan in of_explanation)


async def test_a_recheck_reads_only_the_awaited_tasks(explainer: Explainer) -> None:
    """The tasks that waiters wait for are read by their ids."""
    ids = [task_id(seq) for seq in range(1, 500)]
    assert_reads(await explainer.plans(partial(sql_tasks.finished, ids=ids)), KEY)
