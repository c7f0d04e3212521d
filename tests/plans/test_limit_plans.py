"""Claims and reports of a job with limits cost the same for any number of keys, of which most wait."""

# ruff: noqa: S608 - all of the SQL is written here

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from databases import PostgresDatabases
from replica import ADMIN, OWNER
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from plans.conftest import KINDS
from plans.explained import FEW, Explainer, Plan
from plans.seeding import BIG, JOBS, job_id, task_id, worker_id
from plans.test_plans import describe
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.engine import open_engine
from zndraw_joblib.server.queue import rules_claims, rules_history, rules_limits, rules_tasks, sql_limits
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.policy import LimitValues, Rate
from zndraw_joblib.wire.statuses import TaskStatus

KEYS = 10_000
_WRITE_OF_MANY = re.compile(r"(?:UPDATE|DELETE FROM) (\w+).*\bIN \(\s*SELECT.*LIMIT", re.DOTALL)
TABLES = ("queue", "wait", "slot", "bucket")
# Tasks of the job: one that runs, and the last one in its queue.
RUNNING, LAST = 61_009, 99_997
_RATE = '{"count": 1, "per_seconds": 31536000}'
_SPEC = f"""{{"of": "@global:modifiers:J0",
    "limits": [{{"key": "/user", "max_in_flight": 1, "rate": {_RATE}}}, {{"name": "api"}}]}}"""
_MONTH = datetime.now(UTC) + timedelta(days=30)
_UUID = {
    "sqlite": "printf('%032x', CAST({} AS INTEGER))",
    "postgresql": "lpad(to_hex(CAST({} AS integer)), 32, '0')::uuid",
}
_NOW = {"sqlite": "'2026-01-01 00:00:00.000000'", "postgresql": "timestamptz '2026-01-01Z'"}
_LATER = {
    "sqlite": f"'{_MONTH:%Y-%m-%d %H:%M:%S.000000}'",
    "postgresql": f"timestamptz '{_MONTH:%Y-%m-%d %H:%M:%SZ}'",
}
_TRUE = {"sqlite": "1", "postgresql": "true"}


def seeds(kind: str) -> list[str]:
    """Return statements for a limit with 10,000 keys.

    Nine of ten wait, of which one of a hundred may go on, and each task that is held has a slot.
    """
    bucket, now, later, yes = _UUID[kind], _NOW[kind], _LATER[kind], _TRUE[kind]
    big = f"'{job_id(BIG).hex}'"
    return [
        f"UPDATE joblib_job SET limits = '{_SPEC}' WHERE id = {big}",
        f"""UPDATE joblib_task SET limit_key = CAST(seq % {KEYS} AS TEXT)
            WHERE job_id = {big} AND status IN ('pending', 'claimed', 'running')""",
        f"""INSERT INTO joblib_limit (name, spec, created_at, updated_at, updated_by)
            SELECT 'limit' || seq, '{{"max_in_flight": 1}}', {now}, {now}, 'admin'
            FROM joblib_task WHERE seq <= 1000""",
        f"""INSERT INTO joblib_limit (name, spec, created_at, updated_at, updated_by)
            VALUES ('api', '{{"max_in_flight": 100000}}', {now}, {now}, 'admin')""",
        f"""INSERT INTO joblib_limit_queue (job_id, room_id, limit_key, lane, seq, blocked_by)
            SELECT job_id, room_id, limit_key, min(lane), min(seq),
                CASE WHEN CAST(limit_key AS INTEGER) % 10 > 0 THEN {bucket.format("limit_key")} END
            FROM joblib_task WHERE limit_key IS NOT NULL AND status = 'pending'
            GROUP BY job_id, room_id, limit_key""",
        f"""INSERT INTO joblib_limit_wait (job_id, bucket_id, ready_at, is_due)
            SELECT DISTINCT job_id, blocked_by,
                CASE WHEN CAST(limit_key AS INTEGER) % 100 = 1 THEN {now} ELSE {later} END,
                CAST(limit_key AS INTEGER) % 100 = 2
            FROM joblib_limit_queue WHERE blocked_by IS NOT NULL""",
        f"""INSERT INTO joblib_limit_slot (task_seq, bucket_id, job_id, freed)
            SELECT seq, {bucket.format("seq")}, job_id, CASE WHEN seq % 10 = 0 THEN {yes} ELSE NOT {yes} END
            FROM joblib_task WHERE status IN ('claimed', 'running')""",
        f"""INSERT INTO joblib_limit_bucket (id, next_at)
            SELECT DISTINCT bucket_id, {now} FROM joblib_limit_wait""",
        "ANALYZE",
    ]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def limited_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a copy of the database with many tasks, with limits."""
    kind = request.param
    url = request.getfixturevalue(f"seeded_{kind}")[KINDS[1]]
    if kind == "sqlite":
        copy = tmp_path_factory.mktemp("limits") / "limited.db"
        shutil.copy(Path(url.removeprefix("sqlite:///")), copy)
        url = f"sqlite:///{copy}"
    else:
        postgres: PostgresDatabases = request.getfixturevalue("postgres")
        asyncio.run(_copy(postgres))
        url = postgres.url.format("plans_limited")
    asyncio.run(_run(url, seeds(kind)))
    return url


async def _copy(postgres: PostgresDatabases) -> None:
    connection = await asyncpg.connect(postgres.url.format("postgres"))
    await connection.execute("CREATE DATABASE plans_limited TEMPLATE plans_analysed")
    await connection.close()


async def _run(url: str, statements: list[str]) -> None:
    engine = open_engine(url)
    for statement in statements:
        async with engine.begin() as connection:
            await connection.execute(text(statement))
    await engine.dispose()


@pytest.fixture
async def engine(limited_url: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine on the database with limits."""
    engine = open_engine(limited_url)
    yield engine
    await engine.dispose()


def assert_reads_few(plans: list[Plan]) -> None:
    """Check that indexes read the tables of limits and their tasks, and that few rows are sorted.

    A write of many rows may join these with the table, and the metrics read up to 10,000 waits.
    """
    plans = [plan for plan in plans if re.search("joblib_limit|limit_key = ", plan.statement)]
    assert plans
    for plan in plans:
        if written := _WRITE_OF_MANY.match(plan.statement):
            assert plan.by(written[1]) - {None}, describe(plan)
            continue
        tables = ("queue", "slot", "bucket") if "LIMIT 10000" in plan.statement else TABLES
        for table in tables:
            assert None not in plan.by(f"joblib_limit_{table}"), describe(plan)
        assert None not in plan.by("joblib_limit") | plan.by("joblib_task"), describe(plan)
        assert plan.sorted_rows <= FEW, describe(plan)


@pytest.mark.parametrize("most", [1, 100])
async def test_claims_of_a_job_with_limits(explainer: Explainer, most: int) -> None:
    """They read open queues in order, waits that are over, and the buckets of these."""
    item = rules_claims.Claim(OWNER, worker_id(BIG + JOBS), 15, uuid4(), task_limit=most)
    assert_reads_few(await explainer.plans(partial(rules_claims.claim, items=[item])))


async def test_reports_of_tasks_with_slots(explainer: Explainer) -> None:
    """They free the slots of their tasks, and wake the claims that wait for these."""

    async def work(tx: Transaction) -> None:
        report = rules_tasks.Report(ADMIN, task_id(RUNNING), TaskUpdateRequest(status=TaskStatus.FAILED))
        [result] = await rules_tasks.report(tx, [report])
        assert not isinstance(result, Exception)

    assert_reads_few(await explainer.plans(work))


async def test_background_work_on_limits(explainer: Explainer) -> None:
    """Waits for rates end by the time; the pruner and the metrics read a bounded part."""

    async def work(tx: Transaction) -> None:
        now = await tx.now()
        assert (await rules_limits.next_ready(tx))[0] is not None
        await rules_limits.count_rate_limited(tx)
        await sql_limits.prune_buckets(tx, now - timedelta(days=1), 100)
        await sql_limits.prune_queues(tx, sql_limits.FIRST_QUEUE, 100)
        await sql_limits.prune_waits(tx, now, sql_limits.FIRST_WAIT, 100)
        await sql_limits.prune_slots(tx, 0, 100)

    assert_reads_few(await explainer.plans(work))


async def test_operators_and_explanations(explainer: Explainer) -> None:
    """A limit with a name among 1,000, and why a task waits."""

    async def work(tx: Transaction) -> None:
        rate = LimitValues(rate=Rate(count=1, per_seconds=60))
        await rules_limits.put(tx, ADMIN, "limit7", rate)
        await rules_limits.get(tx, "limit7")
        explanation = await rules_history.explain(tx, task_id(LAST), ClaimOrder())
        assert explanation.reasons

    assert_reads_few(await explainer.plans(work))
