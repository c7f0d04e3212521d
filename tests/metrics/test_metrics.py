"""The metrics: their figures, labels and formats, and who may read them."""

import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from databases import on_sqlite
from fastapi import FastAPI
from prometheus_client import exposition
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.registry import Collector
from pydantic import SecretStr, ValidationError
from rest import UNKNOWN_ID, V1, claim, expect_problem, register, report, submit
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from metrics.scraping import ADMIN_TOKEN, Values, parsed, running, scrape, value
from zndraw_joblib.server.admin.sql_statistics import ALL_JOBS
from zndraw_joblib.server.db.tables import Job, RoomCount, Server, Statistic
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.http.metrics import Family, bounds_of, encode, labels_of
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.wire.operators import BUCKET_BOUNDS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md"
TOKEN = "a-token-for-prometheus"
AS_PROMETHEUS = {"Authorization": f"Bearer {TOKEN}"}
LABELS = {
    *("job_name", "status", "outcome", "cause", "state", "le"),
    *("process", "method", "route", "action", "version", "limit"),
}


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings with a token for metrics. Workers that send no heartbeats are active for long."""
    return ServerSettings(
        database_url=database_url, admin_token=ADMIN_TOKEN, metrics_token=TOKEN, worker_timeout_seconds=3600
    )


def test_the_text_is_that_of_prometheus_client() -> None:
    """In both formats: names of counters, escapes, large and fractional numbers, histograms."""
    job, numbers = 'a"b\\c\n\u00e9', (0, 999_999, 1_000_000, -3, True, 0.25, 1e-7, 123_456_789.5)
    gauge, counter = Family("gauge", "g", "A gauge."), Family("counter", "c", "A counter.")
    histogram = Family("histogram", "h", "A histogram.")
    expected: list[Any] = [
        GaugeMetricFamily("zndraw_joblib_g", "A gauge.", labels=("job_name", "n")),
        CounterMetricFamily("zndraw_joblib_c", "A counter."),
        HistogramMetricFamily("zndraw_joblib_h", "A histogram.", labels=("job_name",)),
    ]
    for number in numbers:
        gauge.add(labels_of(job_name=job, n=str(number)), number)
        expected[0].add_metric([job, str(number)], number)
    counter.add("", 3)
    expected[1].add_metric([], 3)
    histogram.add_histogram(labels_of(job_name=job), bounds_of([0.5, 3_000_000]), [1, 2, 3], 7)
    expected[2].add_metric([job], [("0.5", 1), ("3e+06", 3), ("+Inf", 6)], 7)

    class Expected(Collector):
        def collect(self) -> Iterable[Metric]:
            return expected

    families = [gauge, counter, histogram]
    assert encode(families, "")[0] == exposition.generate_latest(Expected())
    is_open = "application/openmetrics-text; version=1.0.0"
    text_of_client: bytes = openmetrics_exposition.generate_latest(Expected())  # type: ignore[no-untyped-call]
    assert encode(families, is_open)[0] == text_of_client


def of_queue(found: Values) -> Values:
    """Return the figures of the whole queue without ages, which grow between two scrapes."""
    return {
        key: number
        for key, number in found.items()
        if "process" not in dict(key[1]) and not key[0].endswith("oldest_waiting_seconds")
    }


def totals_of(job_id: UUID, jobs: int = 1) -> dict[str, Any]:
    """Return the totals of a job, or of several such jobs."""
    numbers = {"submitted": 2**40, "completed": 4, "failed": 5, "retried": 6, "lost": 7}
    row = Statistic(
        resolution=0,
        job_id=job_id,
        start=datetime(2030, 1, 1, tzinfo=UTC),
        **{name: jobs * number for name, number in numbers.items()},
        waiting=[jobs * number for number in (1, 2, 1)] + [0] * (len(BUCKET_BOUNDS) - 2),
        running=[0] * len(BUCKET_BOUNDS) + [jobs],
        running_seconds=jobs * 90_000.5,
        causes={"worker-lost": 3},
    )
    return row.model_dump()


async def add_server(engine: AsyncEngine, minutes: float) -> None:
    """Add a server that reported some minutes ago, as one does whose sweeper runs."""
    at = datetime.now(UTC) - timedelta(minutes=minutes)
    server = Server(
        **{"host": "h", "pid": 1, "version": "1", "sweep_interval_seconds": 30, "grace_remaining_seconds": 0},
        **dict.fromkeys(("started_at", "seen_at", "last_good_at"), at),
    )
    async with engine.begin() as connection:
        await connection.execute(insert(Server.__table__), [server.model_dump()])


async def scrape_totals(app: FastAPI, client: httpx.AsyncClient, number: int) -> Values:
    """Return the metrics once the statistics have read that tasks were submitted."""

    async def read() -> Values | None:
        await app.state.joblib.rollups.update(timedelta(0))
        found = await scrape(client)
        return found if value(found, "tasks_submitted_total") >= number else None

    return await until(read, interval=0.2)


async def add_tasks(client: httpx.AsyncClient, job: dict[str, Any]) -> list[str]:
    """Submit a scheduled task and four others, of which three are claimed and two of these end."""
    tasks = [await submit(client, job) for _ in range(4)]
    for status in ("completed", "failed"):
        got = await claim(client, job["worker_id"])
        assert got is not None
        for step in ("running", status):
            assert (await report(client, got, step, attempt=got["attempt"])).status_code == 200
    assert await claim(client, job["worker_id"]) is not None
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    assert (await client.post(url, json={"payload": {}, "delay_seconds": 1000})).status_code == 202
    return [task["id"] for task in tasks]


async def test_figures_of_the_queue_are_the_same_from_every_server(
    settings: ServerSettings, engine: AsyncEngine
) -> None:
    """Two servers return the same figures: those of the tasks, the workers, the statistics and the servers.

    No label has a room, a task or a worker, and each label is a documented one.
    """
    app = create_app(settings)
    async with running(app) as client, running(create_app(settings)) as other:
        await app.state.joblib.rollups.update(timedelta(0))
        job = await register(client)
        ids = [*await add_tasks(client, job), job["worker_id"]]
        await add_server(engine, minutes=10)
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE joblib_worker SET slots = 4"))
        found, again = await scrape_totals(app, client, 5), await scrape(other, **AS_PROMETHEUS)
    assert of_queue(found) == of_queue(again)
    name = {"job_name": "@global:modifiers:Rotate"}
    counts = {"pending": 2, "claimed": 1, "running": 0, "completed": 1, "failed": 1, "cancelled": 0}
    assert {status: value(found, "tasks", **name, status=status) for status in counts} == counts
    for metric, number in {
        **{"queued_tasks": 1, "scheduled_tasks": 1, "job_workers": 1, "job_paused": 0},
        **{"tasks_submitted_total": 5, "attempts_retried_total": 0, "attempts_lost_total": 0},
        **{"task_waiting_seconds_count": 2, "task_running_seconds_count": 2},
    }.items():
        assert value(found, metric, **name) == number, metric
    assert 0 < value(found, "oldest_waiting_seconds", **name) < 600
    assert value(found, "tasks_finished_total", **name, outcome="failed") == 1
    assert value(found, "attempt_failures_total", cause="error") == 1
    assert [value(found, "worker_slots", state=state) for state in ("held", "free")] == [1, 3]
    assert value(found, "workers", state="active") == value(found, "servers", state="silent") == 1
    assert {label for _, labels in found for label, _ in labels} <= LABELS
    texts = [given for _, labels in found for label, given in labels if label != "route"]
    assert not [given for given in texts if given == "lab" or any(each in given for each in ids)]


async def test_only_its_token_and_superusers_read_metrics(settings: ServerSettings) -> None:
    """Without a token, with a wrong one, and with that of another user there are none.

    The token of the metrics opens nothing else. Without the setting, only superusers read them.
    """
    async with running(create_app(settings)) as client:
        for url in ("/metrics", f"{V1}/metrics"):
            assert (await client.get(url)).status_code == 200
            assert (await client.get(url, headers=AS_PROMETHEUS)).status_code == 200
            for given in ("Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", "Bearer \xff"):
                got = await client.get(url, headers={b"Authorization": given.encode("latin-1")})
                assert TOKEN not in expect_problem(got, 401, "unauthorized")["detail"]
        expect_problem(await client.get(f"{V1}/workers", headers=AS_PROMETHEUS), 401, "unauthorized")
        settings.metrics_token = None
        expect_problem(await client.get("/metrics", headers=AS_PROMETHEUS), 401, "unauthorized")
        settings.metrics_token = SecretStr(TOKEN)
    assert TOKEN not in repr(settings)
    with pytest.raises(ValidationError, match="metrics_token"):
        JobLibSettings(metrics_token="too-short")


@on_sqlite
async def test_a_host_serves_them_under_the_prefix(settings: ServerSettings) -> None:
    """In a host's app the token works too, and a user who is no superuser gets 403."""
    user = Identity("ada", is_superuser=False)
    app = FastAPI()
    origin = create_app(settings)
    database = origin.state.joblib.runtime.database
    JobLib(session_maker=database, identity=lambda: user, settings=settings).mount(app)
    try:
        async with running(app) as client:
            expect_problem(await client.get(f"{V1}/metrics"), 403, "forbidden")
            got = await client.get(f"{V1}/metrics", headers=AS_PROMETHEUS)
            assert value(parsed(got.text), "database_up") == 1
            assert (await client.get("/metrics")).status_code == 404
    finally:
        await database.close()


async def add_jobs(engine: AsyncEngine, names: list[str]) -> None:
    """Add jobs of a room, each with a queued and a failed task; the first and last ones with totals."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    jobs = [
        {
            "id": uuid4(),
            "room_id": "lab",
            "category": "modifiers",
            "name": name,
            "schema": {},
            "deleted": False,
        }
        | {"pending": 1, "created_at": at + timedelta(seconds=place)}
        for place, name in enumerate(names)
    ]
    counts = [
        RoomCount(room_id="lab", job_id=job["id"], part=0, total=2, pending=1, failed=1, cancelled=0)
        for job in jobs
    ]
    totals = [totals_of(job["id"]) for job in (*jobs[:5], *jobs[-2:])]
    # The row of all jobs also has those that were deleted: one of them, here.
    totals.append(totals_of(ALL_JOBS, jobs=len(totals) + 1))
    async with engine.begin() as connection:
        await connection.execute(insert(Job.__table__), jobs)
        await connection.execute(insert(RoomCount.__table__), [count.model_dump() for count in counts])
        await connection.execute(insert(Statistic.__table__), totals)


async def test_many_jobs_with_hostile_names_are_added_up(
    settings: ServerSettings, engine: AsyncEngine
) -> None:
    """Names are escaped in both formats. Beyond 500, the newest jobs are one: no label changes."""
    names = [
        'quote"d',
        "back\\slash",
        "line\nend",
        "ünïcode",
        'x{le="1"} 5',
        *[f"J{n}" for n in range(5, 502)],
    ]
    await add_jobs(engine, names)
    async with running(create_app(settings)) as client:
        response = await client.get("/metrics")
        accept = "application/openmetrics-text;version=1.0.0;q=0.7,text/plain;version=nonsense"
        other = await client.get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(response.text)
    full_names = [f"lab:modifiers:{name}" for name in names]
    for name in full_names[:5]:
        for metric, number in {
            **{"queued_tasks": 1, "task_waiting_seconds_count": 4, "task_running_seconds_sum": 90_000.5},
            **{"tasks_submitted_total": 2**40, "attempts_retried_total": 6, "attempts_lost_total": 7},
        }.items():
            assert value(found, metric, job_name=name) == number, metric
        assert value(found, "task_waiting_seconds_bucket", job_name=name, le="0.05") == 3
    listed = {dict(labels).get("job_name") for _, labels in found} - {None}
    assert listed == {*full_names[:500], "other"}
    assert value(found, "queued_tasks", job_name="other") == 2
    assert value(found, "tasks", job_name="other", status="failed") == 2
    assert value(found, "tasks_finished_total", job_name="other", outcome="failed") == 15
    assert value(found, "task_waiting_seconds_count", job_name="other") == 12
    assert other.headers["content-type"].startswith("application/openmetrics-text")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(other.text)}
    queued = families["zndraw_joblib_queued_tasks"].samples
    assert {sample.labels["job_name"] for sample in queued} == listed


@on_sqlite
async def test_a_process_counts_its_requests(settings: ServerSettings) -> None:
    """Requests by method, route and status; their times, but not of those that wait; and its batches."""
    async with running(create_app(settings)) as client:
        job = await register(client)
        await submit(client, job)
        before = await scrape(client)
        for _ in range(3):
            await submit(client, job)
        assert (await client.get(f"{V1}/tasks/{UNKNOWN_ID}")).status_code == 404
        body = {"worker_id": job["worker_id"]}
        for headers in ({}, {"Prefer": "wait=5"}):
            assert (await client.post(f"{V1}/tasks/claim", json=body, headers=headers)).status_code == 200
        found = await scrape(client)
    submitted = {"method": "POST", "route": f"{V1}/rooms/{{room_id}}/tasks/{{name}}"}
    assert value(before, "http_requests_total", **submitted, status="202") == 1
    assert value(found, "http_requests_total", **submitted, status="202") == 4
    assert value(found, "http_request_seconds_count", **submitted) == 4
    missing = {"method": "GET", "route": f"{V1}/tasks/{{task_id}}", "status": "404"}
    assert value(found, "http_requests_total", **missing) == 1
    claims = {"method": "POST", "route": f"{V1}/tasks/claim"}
    assert value(found, "http_requests_total", **claims) == 2
    assert value(found, "http_request_seconds_count", **claims) == 1
    assert value(found, "batch_items_count") >= value(before, "batch_items_count") + 5
    assert value(found, "batch_items_bucket", le="1.0") > 0
    assert value(found, "waiting_requests") == value(found, "event_streams") == 0
    assert value(found, "build_info") == 1
    assert len({dict(labels)["process"] for _, labels in found if "process" in dict(labels)}) == 1


async def test_without_the_database_a_process_still_has_its_own_figures(
    settings: ServerSettings, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """The response says that the database could not be read, and the log says why."""
    async with running(create_app(settings)) as client:
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE joblib_room_count RENAME TO away"))
        with caplog.at_level(logging.ERROR):
            found = await scrape(client, **AS_PROMETHEUS)
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE away RENAME TO joblib_room_count"))
    assert value(found, "database_up") == 0
    assert value(found, "event_loop_lag_seconds") >= 0
    assert not of_queue(found)
    lines = [record.getMessage() for record in caplog.records if "metrics" in record.getMessage()]
    assert len(lines) == 1


async def test_every_metric_is_documented(settings: ServerSettings, engine: AsyncEngine) -> None:
    """`metrics.md` lists exactly the metrics of a server, with their types and labels."""
    app = create_app(settings)
    async with running(app) as client:
        await app.state.joblib.rollups.update(timedelta(0))
        await add_tasks(client, await register(client))
        await add_server(engine, minutes=0)
        await app.state.joblib.sweeper.cycle()
        await scrape_totals(app, client, 5)
        content = (await client.get("/metrics")).text
    listed = {
        name.strip(" `"): (kind.strip(), set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(r"^\| (`.+?`) \|(.+?)\|(.*?)\|", PAGE.read_text(), re.MULTILINE)
    }
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", content, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in kinds}
    for name, given in parsed(content):
        family = name if name in kinds else re.sub(r"_(bucket|count|sum)$", "", name)
        labels[family] |= {label for label, _ in given} - {"le"}
    assert listed == {name: (kinds[name], labels[name]) for name in kinds}
