"""Findings of limits of the whole queue that are nearly reached, of forgotten pauses and of versions."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from replica import ADMIN, OWNER, ManualClock, Replica

from zndraw_joblib.server.admin.rules_servers import Process, SweepReport, report
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_results, sql_results
from zndraw_joblib.wire.messages import SweeperCycle, SweeperMode
from zndraw_joblib.wire.operators import Finding, Severity

CODES = {"pending-tasks-near-limit", "result-store-near-limit", "room-paused", "different-versions"}
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


async def findings(replica: Replica) -> list[tuple[str, Severity]]:
    """Return the findings that these tests are about."""
    return [(found.code, found.severity) for found in await details(replica)]


async def details(replica: Replica) -> list[Finding]:
    """Return the same with all that they say."""
    return [found for found in (await replica.overview()).findings if found.code in CODES]


async def test_pending_tasks_near_their_limit(replica: Replica) -> None:
    """A warning from 80 % on, critical from 95 % on; scheduled tasks count, claimed ones do not."""
    settings: JobLibSettings = replica.runtime.settings
    settings.max_pending_tasks, settings.max_share_per_user = 20, 1
    job = await replica.register()
    for delay in [0] * 8 + [3600] * 7:
        await replica.submit(job, delay_seconds=delay or None)
    assert await findings(replica) == []
    await replica.submit(job)
    assert await findings(replica) == [("pending-tasks-near-limit", WARNING)]
    for _ in range(3):
        await replica.submit(job)
    [found] = await details(replica)
    assert (found.severity, found.count) == (CRITICAL, 19)
    assert "19 tasks are pending, with scheduled ones: 95% of the 20 that max_pending_tasks" in found.detail
    assert (await replica.metrics()).used_ratios["max_pending_tasks"] == 0.95
    for _ in range(4):
        await replica.claim_task(job.worker_id)
    assert await findings(replica) == []


@pytest.fixture
def store(replica: Replica) -> Callable[[int], Awaitable[None]]:
    """Return a function that stores a result of so many bytes, with those of its rows."""

    async def put(size: int) -> None:
        task = await replica.running(await replica.register())
        upload = rules_results.Upload(OWNER, task.id, task.attempt)
        quota = sql_results.Quota(2**40, 2**40, timedelta(days=1))
        content = size - sql_results.RESULT_BYTES
        await replica.runtime.write(rules_results.begin, upload, f"task-result:{uuid4()}", content, quota)

    return put


async def test_stored_results_near_their_limit(
    replica: Replica, store: Callable[[int], Awaitable[None]]
) -> None:
    """The share of one user is a warning; the limit of all a warning from 80 % on, critical from 95 % on."""
    settings: JobLibSettings = replica.runtime.settings
    settings.max_stored_result_bytes, settings.max_share_per_user = 100_000, 0.5
    await store(39_999)
    assert await findings(replica) == []
    await store(10_001)
    [found] = await details(replica)
    assert (found.code, found.severity) == ("result-store-near-limit", WARNING)
    assert "of user submitter have 50,000 bytes: 100% of the 50,000 bytes that one user" in found.detail
    settings.max_stored_result_bytes = 62_500
    [found] = await details(replica)
    assert (found.code, found.severity) == ("result-store-near-limit", WARNING)
    assert "have 50,000 bytes: 80% of the 62,500 bytes that max_stored_result_bytes" in found.detail
    settings.max_stored_result_bytes = 50_000
    assert await findings(replica) == [("result-store-near-limit", CRITICAL)]
    figures = await replica.metrics()
    assert (figures.stored_result_bytes, figures.used_ratios["max_stored_result_bytes"]) == (50_000, 1)


async def test_a_forgotten_pause_is_a_warning(timed: Replica, clock: ManualClock) -> None:
    """It has no end, and has held back tasks for a day."""
    await timed.pause_room("lab")
    clock.advance(86_400)
    assert await findings(timed) == [("room-paused", Severity.INFO)]
    await timed.submit(await timed.register())
    [found] = await details(timed)
    assert (found.severity, found.count) == (WARNING, 1)
    assert f"Room lab is paused, by {ADMIN.id}: 1 task pending." in found.detail


async def test_servers_of_different_versions(timed: Replica, clock: ManualClock) -> None:
    """The finding names those of the version that fewer servers have."""
    state, numbers = SweepReport(0, 0, 0, 30), ("scanned", "stale", "expired", "released", "failed", "pruned")
    cycle = SweeperCycle(
        at=clock.now,
        mode=SweeperMode.ENFORCE,
        held_back=False,
        elapsed=0,
        errors=0,
        **dict.fromkeys(numbers, 0),
    )
    for version in ("1.0.0", "1.0.0", "0.9.7"):
        server = Process(uuid4(), f"host-of-{version}", 7, version)
        await timed.runtime.write(report, server, state, cycle, prune=False)
        if version == "1.0.0":
            assert await findings(timed) == []
    [found] = await details(timed)
    assert (found.code, found.severity) == ("different-versions", Severity.INFO)
    assert "1 of 0.9.7, 2 of 1.0.0" in found.detail
    assert "host-of-0.9.7 (pid 7)" in found.remedy
