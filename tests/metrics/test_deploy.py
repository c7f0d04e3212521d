"""The alert rules and the dashboard: each expression is valid, and each rule fires when it should."""

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml
from databases import on_sqlite
from rest import register
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from metrics.promql import Evaluation, Scrape, selectors
from metrics.scraping import PREFIX, Values, running, scrape
from metrics.test_metrics import add_server, add_tasks, scrape_totals
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yml").read_text())[
    "groups"
][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())


class Case(NamedTuple):
    """What is wrong: values that replace those of a healthy server, or that are added to its counters."""

    values: dict[str, float]
    added: dict[str, float] = {}  # noqa: RUF012 - never changed


# The key of a value: the name of the metric without its prefix, and the labels that select it.
CASES = {
    "ZndrawJoblibDatabaseDown": Case({"database_up": 0}),
    "ZndrawJoblibServerSilent": Case({"servers state=silent": 1}),
    "ZndrawJoblibSweeperSilent": Case({"sweeper_last_success_timestamp_seconds": 1e9}),
    "ZndrawJoblibSweeperErrors": Case({}, {"sweeper_actions_total action=error": 1}),
    "ZndrawJoblibStatisticsLate": Case({"statistics_until_timestamp_seconds": 1e9}),
    "ZndrawJoblibJobWithoutWorkers": Case({"job_workers": 0}),
    "ZndrawJoblibJobWithoutExecutor": Case({"jobs_without_executor": 1}),
    "ZndrawJoblibTaskWaitsTooLong": Case({"oldest_waiting_seconds": 3601}),
    "ZndrawJoblibPausedJobHasTasks": Case({"job_paused": 1}),
    "ZndrawJoblibRoomPaused": Case({"paused_rooms": 2}),
    "ZndrawJoblibNearLimit": Case({"limit_used_ratio limit=max_stored_result_bytes": 0.81}),
    "ZndrawJoblibJobFails": Case(
        {}, {"tasks_finished_total outcome=failed": 6, "tasks_finished_total outcome=completed": 4}
    ),
    "ZndrawJoblibScheduleFailed": Case({"failed_schedules": 1}),
    "ZndrawJoblibWorkerTokenEnds": Case({"worker_token_seconds": 259_000}),
    "ZndrawJoblibAttemptsLost": Case({}, {"attempts_lost_total": 11}),
    "ZndrawJoblibWorkersSilent": Case({"workers state=silent": 1}),
    "ZndrawJoblibNoFreeSlot": Case({"worker_slots state=free": 0, "worker_slots state=held": 4}),
    "ZndrawJoblibWebhooksLate": Case({"webhook_lag_seconds": 301}),
    "ZndrawJoblibWebhooksFail": Case({"failing_webhooks": 1}),
    "ZndrawJoblibWebhooksDisabled": Case({"disabled_webhooks": 1}),
    "ZndrawJoblibRequestsFail": Case(
        {}, {"http_requests_total status=503": 5, "http_requests_total status=202": 50}
    ),
    "ZndrawJoblibRequestsSlow": Case({}, {"http_request_seconds_bucket le=+Inf": 9}),
    "ZndrawJoblibEventLoopBusy": Case({"event_loop_lag_seconds": 0.6}),
}


@pytest.fixture
async def healthy(settings: ServerSettings, engine: AsyncEngine) -> list[Scrape]:
    """Return two scrapes of a healthy server with a queued task, the second 5 minutes after the first."""
    # Its worker sends no heartbeats.
    settings.worker_timeout_seconds = 3600
    app = create_app(settings)
    async with running(app) as client:
        await app.state.joblib.rollups.update(timedelta(0))
        await add_tasks(client, await register(client))
        await add_server(engine, minutes=0)
        await app.state.joblib.sweeper.cycle()
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE joblib_worker SET slots = 4"))
        await scrape_totals(app, client, 5)
        found = await scrape(client)
    # The event loop of a busy machine may be late.
    found |= {key: 0.0 for key in found if key[0].endswith("event_loop_lag_seconds")}
    # No test of this file provokes a response with 503, so its series is made here.
    [key] = [key for key in found if key[0].endswith("http_requests_total") and ("status", "202") in key[1]]
    found[key[0], key[1] - {("status", "202")} | {("status", "503")}] = 0
    now = found[PREFIX + "statistics_until_timestamp_seconds", frozenset()] + 5
    return [Scrape(now - 299, found), Scrape(now, dict(found))]


def matching(found: Values, key: str) -> Iterator[tuple[str, frozenset[tuple[str, str]]]]:
    """Return the series that a key of a case selects; there is at least one."""
    name, *labels = key.split()
    wanted = {tuple(label.split("=")) for label in labels}
    series = [each for each in found if each[0] == PREFIX + name and wanted <= each[1]]
    assert series, key
    yield from series


@on_sqlite
async def test_each_rule_fires_for_its_case_only(healthy: list[Scrape]) -> None:
    """No rule fires for a healthy server; each fires for its case, and others only where that follows."""
    assert {rule["alert"] for rule in RULES} == {*CASES, "ZndrawJoblibDown"}
    expressions = {rule["alert"]: rule["expr"] for rule in RULES}

    def firing(scrapes: list[Scrape]) -> set[str]:
        evaluation = Evaluation(scrapes)
        return {name for name, expression in expressions.items() if evaluation.of(expression)}

    assert firing(healthy) == set()
    assert firing([Scrape(0, {})]) == {"ZndrawJoblibDown"}
    for alert, case in CASES.items():
        after = dict(healthy[-1].values)
        for key, number in case.values.items():
            after.update(dict.fromkeys(matching(after, key), number))
        for key, number in case.added.items():
            for series in matching(after, key):
                after[series] += number
        assert firing([healthy[0], Scrape(healthy[1].at, after)]) == {alert}


@on_sqlite
async def test_rules_and_panels_use_metrics_that_exist(healthy: list[Scrape]) -> None:
    """Prometheus' grammar accepts each expression, and a server has its metrics with these labels."""
    known: dict[str, set[str]] = {}
    for name, labels in healthy[0].values:
        known.setdefault(name, set()).update(label for label, _ in labels)
    panels = DASHBOARD["panels"]
    targets = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(targets) > 20
    for given in [*targets, *(rule["expr"] for rule in RULES)]:
        expression = given.replace("$job_name", ".*").replace("$__rate_interval", "5m")
        for metric, labels in selectors(promql_parser.parse(expression)):
            assert metric in known, expression
            assert labels <= known[metric], expression


def test_rules_have_a_summary_and_a_remedy() -> None:
    """Each rule says how urgent it is, what is wrong and what to do; names are unique."""
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 10
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "remedy", "runbook_url"}


def test_panels_do_not_overlap() -> None:
    """Panels have ids of their own and share no place of the grid, which has 24 columns."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_above, (one, other)
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in panels) <= 24
