"""Failures of the database in the log: one line, counted when they repeat, without statements."""

import asyncio
import logging
from contextlib import AsyncExitStack

import httpx
import pytest
from bounds.silent_proxy import SilentProxy
from rest import V1
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.jobs.logs import RepeatedFailure, log_failed_work
from zndraw_joblib.server.db import errors
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

_SECRET = "NameInAParameter"
_REFUSE = {
    "sqlite": "CREATE TRIGGER refuse BEFORE INSERT ON joblib_job BEGIN SELECT RAISE(ABORT, 'refused'); END",
    "postgresql": "ALTER TABLE joblib_job ADD CONSTRAINT refuse CHECK (name = '') NOT VALID",
}
_ALLOW = {"sqlite": "DROP TRIGGER refuse", "postgresql": "ALTER TABLE joblib_job DROP CONSTRAINT refuse"}


def _logged(caplog: pytest.LogCaptureFixture) -> str:
    formatter = logging.Formatter()
    return "\n".join(map(formatter.format, caplog.records))


async def test_a_refused_write_shows_no_statement(
    client: httpx.AsyncClient, engine: AsyncEngine, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback of an unexpected error has neither the statement nor its parameters."""
    async with engine.begin() as connection:
        await connection.execute(text(_REFUSE[kind]))
    try:
        worker = (await client.post(f"{V1}/workers")).json()["id"]
        job = {"category": "analysis", "name": _SECRET, "schema": {}, "worker_id": worker}
        response = await client.put(f"{V1}/rooms/lab/jobs", json=job)
    finally:
        async with engine.begin() as connection:
            await connection.execute(text(_ALLOW[kind]))
    assert response.status_code == 500, response.text
    logged = _logged(caplog)
    assert "Unexpected error" in logged
    assert "Traceback" in logged
    assert "refuse" in logged
    assert "[SQL" not in logged
    assert "INSERT INTO" not in logged.upper()
    assert _SECRET not in logged


async def test_a_stopped_postgresql_is_one_line(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While PostgreSQL cannot be reached, many requests log one line; it has no traceback."""
    # An earlier test may have logged the same.
    monkeypatch.setattr(errors, "_unavailable", RepeatedFailure(logging.getLogger(errors.__name__)))
    async with AsyncExitStack() as stack:
        proxy = SilentProxy(postgres_url)
        await stack.enter_async_context(proxy.running())
        settings = ServerSettings(database_url=proxy.url, admin_token="token-of-the-tests")
        app = create_app(settings, realtime=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://test",
                headers={"Authorization": "Bearer token-of-the-tests"},
            ) as client,
        ):
            assert (await client.post(f"{V1}/workers")).status_code == 201
            await stack.aclose()
            caplog.clear()
            answers = [await client.post(f"{V1}/workers") for _ in range(5)]
            found = [r for r in caplog.records if r.getMessage().startswith("Database unavailable")]
            logged = _logged(caplog)
    assert [answer.status_code for answer in answers] == [503] * 5
    assert len(found) == 1, logged
    assert "Traceback" not in logged
    assert "[SQL" not in logged


async def test_repeated_failures_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is logged at once, later ones together; after a time without any, it begins anew."""
    logged = asyncio.Event()

    class Notice(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            logged.set()
            return True

    def messages() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == logger.name]

    logger = logging.getLogger("zndraw_joblib.test_repeats")
    logger.addFilter(notice := Notice())
    try:
        failures = RepeatedFailure(logger, 0.25)
        for number in range(39):
            failures.log(f"it failed ({number})")
        assert messages() == ["it failed (0)"]
        logged.clear()
        async with asyncio.timeout(30):
            await logged.wait()
        assert messages()[1:] == ["it failed (38) (38 times in 0.25 s)"]
        away = OSError("it is away. The request was not applied; retry it later.")
        log_failed_work(logger, away, "Work waits", task_id="seven")
        log_failed_work(logger, OSError("it is away still"), "Other work waits")
        log_failed_work(logger, ValueError("unexpected"), "Work failed")
        assert messages()[2:] == ["Work waits: it is away", "Work failed"]
    finally:
        logger.removeFilter(notice)
