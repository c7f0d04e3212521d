"""The overview names what is wrong first; statistics and overviews are for those who may read the rooms."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from databases import on_both
from fastapi import FastAPI, HTTPException
from replica import ManualClock
from rest import V1, AsUser, claim, expect_problem, register, report, submit
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from zndraw_joblib import JobLib, JobLibSettings
from zndraw_joblib.server.admin import rules_findings, sql_operators
from zndraw_joblib.server.admin.rules_statistics import SETTLE
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.operators import Finding, Severity


@asynccontextmanager
async def queue_at(
    engine: AsyncEngine, clock: ManualClock
) -> AsyncIterator[tuple[JobLib, httpx.AsyncClient]]:
    """Return a queue on a clock, without background loops, and the client of a superuser."""

    async def identify() -> Identity:
        return Identity("ada", is_superuser=True)

    joblib = JobLib(
        session_maker=async_sessionmaker(engine), identity=identify, settings=JobLibSettings(), clock=clock
    )
    app = FastAPI()
    joblib.mount(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield joblib, client
        await joblib.runtime.finish()


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> Any:
    """Return the body of a response."""
    response = await client.get(f"{V1}{path}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def fail_tasks(client: httpx.AsyncClient, job: dict[str, Any], number: int) -> None:
    """Submit, start and fail tasks."""
    for _ in range(number):
        await submit(client, job)
        body = {"worker_id": job["worker_id"], "start": True}
        task = (await client.post(f"{V1}/tasks/claim", json=body)).json()["task"]
        report = {"status": "failed", "error": "oh"}
        assert (await client.patch(f"{V1}/tasks/{task['id']}", json=report)).is_success


async def add_problems(client: httpx.AsyncClient) -> list[str]:
    """Add a failing job, one without workers, a paused one and a slow one; return their names."""
    failing, unserved, paused, slow = [
        await register(client, name, start_timeout_seconds=0)
        for name in ("Failing", "Unserved", "Paused", "Slow")
    ]
    await fail_tasks(client, failing, 5)
    for job in (unserved, paused, paused, slow):
        await submit(client, job)
    assert (await client.delete(f"{V1}/workers/{unserved['worker_id']}")).is_success
    assert (await client.post(f"{V1}/rooms/lab/jobs/{paused['full_name']}/pause")).is_success
    return [job["full_name"] for job in (failing, unserved, paused, slow)]


@on_both
async def test_findings_are_first_and_have_remedies(engine: AsyncEngine, clock: ManualClock) -> None:
    """Jobs without workers, paused jobs, long waits, failing jobs, silent workers and sweepers."""
    async with queue_at(engine, clock) as (joblib, client):
        await joblib.rollups.update()
        clock.advance(1)
        assert (await get(client, "/overview"))["findings"] == []
        failing, unserved, paused, slow = await add_problems(client)
        await joblib.sweeper.cycle()
        clock.advance(700)
        await joblib.rollups.update()
        found = await get(client, "/overview")
        unserved_since = found["findings"][0]["since"]
        assert found["findings"][0]["detail"] == (
            f"No worker serves {unserved} since {datetime.fromisoformat(unserved_since):%Y-%m-%d %H:%M} UTC: "
            "1 task in its queue."
        )
        codes = [(finding["code"], finding["job"], finding["severity"]) for finding in found["findings"]]
        assert codes == [
            ("job-without-workers", unserved, "critical"),
            ("failing-job", failing, "critical"),
            ("sweeper-silent", None, "critical"),
            ("waiting-too-long", slow, "warning"),
            ("silent-workers", None, "warning"),
            ("job-paused", paused, "info"),
        ]
        assert all(finding["remedy"] and finding["detail"] for finding in found["findings"])
        assert found["counts"] == dict.fromkeys(("claimed", "running", "completed", "cancelled"), 0) | {
            "pending": 4,
            "failed": 5,
        }
        assert (found["queued"], found["jobs"], found["paused_jobs"]) == (4, 4, 1)
        assert found["workers"] == {"active": 0, "silent": 3, "draining": 0}
        assert [(each["submitted"], each["failed"]) for each in found["recent"]] == [(9, 5)]
        assert clock.now - datetime.fromisoformat(found["oldest_waiting_at"]) == timedelta(seconds=700)
        room, other = [await get(client, f"/rooms/{room}/overview") for room in ("lab", "other")]
        assert [finding["code"] for finding in room["findings"]] == ["job-without-workers", "job-paused"]
        assert (room["counts"]["pending"], room["counts"]["failed"], len(room["jobs"])) == (4, 5, 4)
        assert (other["findings"], other["oldest_waiting_at"]) == ([], None)
        assert set(other["counts"].values()) == {0}


@on_both
async def test_a_failure_rate_above_the_usual_one_is_a_finding(
    engine: AsyncEngine, clock: ManualClock
) -> None:
    """It needs 5 failures, 5 % and twice the share of the day before; it begins with the first failure."""
    async with queue_at(engine, clock) as (joblib, client):
        job = await register(client, "Often")
        await joblib.rollups.update()
        clock.advance(1)

        async def end(completed: int, failed: int) -> list[dict[str, Any]]:
            for _ in range(completed):
                await submit(client, job)
                task = await claim(client, job["worker_id"])
                for status in ("running", "completed"):
                    assert (await report(client, task, status, attempt=1)).is_success
            await fail_tasks(client, job, failed)
            clock.advance(4)
            while (await joblib.rollups.update()).is_behind:
                pass
            findings = (await get(client, "/overview"))["findings"]
            return [finding for finding in findings if finding["code"] == "failure-rate"]

        assert await end(30, 4) == []
        clock.advance(120)
        [finding] = await end(20, 6)
        assert "10 of the 60 tasks of @global:modifiers:Often" in finding["detail"]
        assert "17%; the job has run too rarely before to compare" in finding["detail"]
        clock.advance(2 * 3600)
        assert await end(20, 5) == []
        [finding] = await end(0, 13)
        assert "47%; on the day before it was 16.7%" in finding["detail"]
        assert clock.now - datetime.fromisoformat(finding["since"]) < timedelta(minutes=3)


async def found_with(client: httpx.AsyncClient, code: str, room: str | None = None) -> list[dict[str, Any]]:
    """Return the findings with a code, of the queue or of a room."""
    findings = (await get(client, "/overview" if room is None else f"/rooms/{room}/overview"))["findings"]
    return [finding for finding in findings if finding["code"] == code]


@on_both
async def test_a_schedule_whose_last_task_failed_is_a_finding(
    engine: AsyncEngine, clock: ManualClock
) -> None:
    """With its job and the error code, in its room alone, until the task is retried or it is paused."""
    async with queue_at(engine, clock) as (joblib, client):
        job = await register(client, "Nightly")
        body = {"job": job["full_name"], "payload": {"angle": "private"}, "every_seconds": 60}
        for room in ("lab", "attic"):
            assert (await client.put(f"{V1}/rooms/{room}/schedules/nightly", json=body)).status_code == 201
        clock.advance(60)
        await joblib.schedules.submit_due()
        assert await found_with(client, "schedule-run-failed") == []
        failed = []
        for _ in range(2):
            task = await claim(client, job["worker_id"])
            assert (await report(client, task, "running", attempt=1)).is_success
            assert (await report(client, task, "failed", attempt=1, error="private")).is_success
            failed.append(task["id"])
        findings = await found_with(client, "schedule-run-failed")
        assert {each["task"] for each in findings} == set(failed)
        assert {each["room"] for each in findings} == {"lab", "attic"}
        [found] = await found_with(client, "schedule-run-failed", "lab")
        assert (found["job"], found["severity"]) == (job["full_name"], "warning")
        assert (
            f"schedule nightly of room lab, a task of {job['full_name']}, failed with the error code error."
            in found["detail"]
        )
        assert "private" not in str(findings)
        assert await found_with(client, "schedule-run-failed", "cellar") == []
        assert (await client.post(f"{V1}/tasks/{found['task']}/retry")).is_success
        url = f"{V1}/rooms/attic/schedules/nightly"
        assert (await client.patch(url, json={"paused": True})).is_success
        assert await found_with(client, "schedule-run-failed") == []


@on_both
async def test_a_token_of_workers_that_ends_soon_is_a_finding(
    engine: AsyncEngine, clock: ManualClock
) -> None:
    """A warning a week before its end, critical on the last day; with its name and those of its workers."""
    async with queue_at(engine, clock) as (joblib, client):
        write, add = joblib.runtime.write, sql_operators.add_token
        worker = {"name": "gpu-1", "host": "node", "pid": 7}
        created = await client.post(f"{V1}/workers", json=worker)
        assert created.is_success, created.text
        for name, days in (("ada", 8), ("without-workers", 1)):
            rights = sql_operators.TokenRights(expires_at=clock.now + timedelta(days=days))
            assert await write(add, name, f"digest-{name}", is_superuser=True, rights=rights)

        async def endings(seconds: float) -> list[dict[str, Any]]:
            clock.advance(seconds)
            beat = await client.patch(f"{V1}/workers/{created.json()['id']}", json={})
            assert beat.is_success, beat.text
            return await found_with(client, "worker-token-ending")

        assert await endings(0) == []
        [found] = await endings(2 * 86_400)
        assert (found["severity"], found["count"]) == ("warning", 1)
        assert found["detail"] == (
            "Token ada ends in 6 days, at 2030-01-09 00:00 UTC; its worker ends before that: gpu-1."
        )
        [found] = await endings(5.5 * 86_400)
        assert (found["severity"], "ends in 12 hours" in found["detail"]) == ("critical", True)
        clock.advance(3600)
        assert await found_with(client, "worker-token-ending") == []  # the worker is silent
        assert await endings(86_400) == []


@on_both
async def test_a_user_with_most_of_its_share_of_pending_tasks_is_a_finding(
    engine: AsyncEngine, clock: ManualClock
) -> None:
    """From 80 % of the share on; the tasks are counted at most every 10 s."""
    async with queue_at(engine, clock) as (joblib, client):
        joblib.settings.max_pending_tasks = 40
        job = await register(client)
        for _ in range(15):
            await submit(client, job)
        assert await found_with(client, "pending-tasks-near-limit") == []
        await submit(client, job)
        joblib.overviews.shares.forget()
        [found] = await found_with(client, "pending-tasks-near-limit")
        assert (found["severity"], found["count"]) == ("warning", 16)
        assert "User ada has 16 pending tasks: 80% of the 20 that one user may have" in found["detail"]


@on_both
async def test_statistics_of_a_job_and_of_all(engine: AsyncEngine, clock: ManualClock) -> None:
    """By minute and by hour, in a range of time; other values are a 422."""
    async with queue_at(engine, clock) as (joblib, client):
        await joblib.rollups.update()
        clock.advance(1)
        one, two = [await register(client, name) for name in ("One", "Two")]
        await fail_tasks(client, one, 2)
        clock.advance(3600)
        await submit(client, two)
        clock.advance(4)
        while (await joblib.rollups.update()).is_behind:
            pass
        everything = await get(client, "/statistics", resolution=3600)
        assert [(each["submitted"], each["failed"]) for each in everything["intervals"]] == [(2, 2), (1, 0)]
        assert everything["until"] == (clock.now - SETTLE).isoformat().replace("+00:00", "Z")
        of_one = await get(client, "/statistics", job=one["full_name"], resolution=3600)
        assert of_one["job_id"] == one["id"]
        [interval] = of_one["intervals"]
        assert (interval["causes"], sum(interval["running"]["buckets"])) == ({"error": 2}, 2)
        assert (await get(client, "/statistics"))["intervals"][0]["submitted"] == 1
        until = datetime(2030, 1, 1, 0, 1, tzinfo=UTC).isoformat()
        assert (await get(client, "/statistics", until=until))["intervals"][0]["submitted"] == 2
        for params in ({"resolution": 61}, {"since": "yesterday"}, {"resolution": "x"}):
            expect_problem(await client.get(f"{V1}/statistics", params=params), 422, "invalid-request")
        assert (await get(client, "/statistics", until="0001-01-01T00:00:00Z"))["intervals"] == []
        unknown = await client.get(f"{V1}/statistics", params={"job": "lab:modifiers:Unknown"})
        expect_problem(unknown, 404, "job-not-found")


async def test_a_reader_of_one_room_sees_nothing_else(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """Overviews of reserved rooms and of the queue, and statistics of other rooms, are refused."""

    async def only_lab(room_id: str) -> str:
        if room_id != "lab":
            raise HTTPException(403, "not your room")
        return room_id

    own = await register(client, "Own", "lab")
    for room in ("other", "@global"):
        await register(client, "Other", room)
    app.state.joblib.guards = type(app.state.joblib.guards)(only_lab, None)
    reader = await as_user("reader")
    assert (await reader.get(f"{V1}/rooms/lab/overview")).status_code == 200
    own_statistics = await reader.get(f"{V1}/statistics", params={"job": own["full_name"]})
    assert own_statistics.status_code == 200
    refused = ["/overview", "/overview/events", "/rooms/other/overview", "/rooms/@global/overview"]
    refused += ["/rooms/@internal/overview", "/statistics", "/admin/sweeper"]
    refused += [f"/statistics?job={room}:modifiers:Other" for room in ("other", "@global")]
    assert {path: (await reader.get(f"{V1}{path}")).status_code for path in refused} == dict.fromkeys(
        refused, 403
    )


def test_of_a_kind_the_largest_number_is_first() -> None:
    """Critical findings come first, and kinds stay together in their order."""
    kinds = [("a", "warning", 3), ("b", "warning", 50), ("a", "warning", 9), ("c", "critical", None)]
    findings = [
        Finding(code=code, severity=Severity(severity), detail="", remedy="", count=count)
        for code, severity, count in kinds
    ]
    ordered = [(finding.code, finding.count) for finding in rules_findings.ordered(findings)]
    assert ordered == [("c", None), ("a", 9), ("a", 3), ("b", 50)]
