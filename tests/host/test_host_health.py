"""A host's probes: they say whether the queue works, to everybody, without the reasons."""

import logging
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import text
from waiting import until

from host.conftest import Start
from host.queues import ROOT
from zndraw_joblib import JobLib

CHECKS = {"work": "ok", "loops": "ok", "sweeper": "ok", "internal": "ok"}


def refuse() -> None:
    """Refuse a request, as the login of a host refuses one without a session."""
    raise HTTPException(401, "log in")


def build(sessions: Any, **options: Any) -> tuple[JobLib, FastAPI]:
    """Return a queue and its host, whose routes all need a login."""
    app = FastAPI(dependencies=[Depends(refuse)])
    joblib = JobLib(session_maker=sessions, identity=lambda: ROOT, **options)
    joblib.mount(app, health="/health")
    return joblib, app


@on_both
async def test_a_host_is_ready_while_its_queue_works(
    sessions: Any, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the tables of the queue it is not; the body has no reason, and the log has it once."""
    joblib, app = build(sessions, upgrade_tables=True)
    client = await start(app)

    async def ready(status: int) -> httpx.Response:
        responses = []

        async def ask() -> bool:
            responses.append(await client.get("/health/ready"))
            return responses[-1].status_code == status

        await until(ask)
        return responses[-1]

    assert (await client.get("/v1/joblib/jobs")).status_code == 401
    assert (await client.get("/health/live")).json() == {"status": "alive"}
    assert (await ready(200)).json() == {"status": "ready", "checks": CHECKS}
    assert await joblib.failed_checks() == {}

    async with sessions() as session, session.begin():
        await session.execute(text("ALTER TABLE joblib_worker RENAME TO joblib_away"))
    with caplog.at_level(logging.WARNING):
        response = await ready(503)
        assert response.json() == {"status": "not ready", "checks": {**CHECKS, "work": "failed"}}
        assert "zndraw-joblib db upgrade" in (await joblib.failed_checks())["work"]
        assert response.headers["cache-control"] == "no-store"
    assert sum("The server is not ready: work:" in message for message in caplog.messages) == 1

    async with sessions() as session, session.begin():
        await session.execute(text("ALTER TABLE joblib_away RENAME TO joblib_worker"))
    await ready(200)


async def test_a_host_whose_lifespan_does_not_run_is_not_ready(sessions: Any) -> None:
    """As an app with the queue that is mounted into another one: the tables are there, the loops are not."""
    with pytest.raises(ValueError, match="health='health' is no path"):
        JobLib(session_maker=sessions, identity=lambda: ROOT).mount(FastAPI(), health="health")
    joblib, app = build(sessions)
    await joblib.prepare_tables()
    outer = FastAPI()
    outer.mount("/inner", app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://host") as client:
        response = await client.get("/inner/health/ready")
    assert (response.status_code, response.json()["checks"]) == (503, {**CHECKS, "loops": "failed"})
    assert "lifespan" in (await joblib.failed_checks())["loops"]
