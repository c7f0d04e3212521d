"""`examples/receiver.py`, as a process of its own, gets deliveries of a server."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from databases import on_sqlite
from replica import ADMIN, Replica

from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.db.tables import OutboxRow
from zndraw_joblib.server.queue import rules_webhooks
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.webhooks import WebhookRequest, new_webhook_secret

pytestmark = pytest.mark.processes
OUTBOX = OutboxRow.__table__
_ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def receiver(secret: str) -> AsyncIterator[tuple[Process, str]]:
    """Run the example as its first lines say, on a free port; yield the process and its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "examples.receiver:app", "--port", "0", "--no-access-log"),
        cwd=_ROOT,
        env={**os.environ, "WEBHOOK_SECRET": secret},
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while (line := (await process.stderr.readline()).decode()) and "running on" not in line:
                pass
        port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert port is not None, line
        yield process, f"http://127.0.0.1:{port[1]}/hook"
    finally:
        process.kill()
        await process.communicate()


@on_sqlite
async def test_the_example_verifies_and_handles_each_event_once(replica: Replica) -> None:
    """A repeat is accepted and not handled again; a delivery with another secret gets 401."""
    settings, secret = replica.runtime.settings, new_webhook_secret()
    settings.webhook_http, settings.webhook_ports = True, ["1-65535"]
    settings.webhook_networks = ["127.0.0.0/8"]
    write, webhooks = replica.runtime.write, Webhooks(replica.runtime)
    job = await replica.register()
    async with asyncio.timeout(120), receiver(secret) as (process, url):
        assert process.stdout is not None
        for name, key in (("ci", secret), ("wrong", new_webhook_secret())):
            item = rules_webhooks.NewWebhook(
                ADMIN, "lab", name, WebhookRequest(url=url, secret=key), settings
            )
            await write(rules_webhooks.put, item)
        task = await replica.submit(job)
        assert await replica.claim(job.worker_id) is not None
        await replica.report(task.id, TaskStatus.RUNNING)
        await replica.report(task.id, TaskStatus.COMPLETED, result={"energy": -1.5})
        await webhooks.deliver_due()
        text = (await process.stdout.readline()).decode()
        assert text == "task.completed @global:modifiers:Rotate completed {'energy': -1.5}\n"
        wrong = await replica.runtime.database.read(rules_webhooks.get, "lab", "wrong")
        assert wrong.last_error == "the receiver answered 401"
        [first] = [row for row in await replica.rows(OUTBOX) if row.webhook == "ci"]
        await write(rules_webhooks.repeat, "lab", first.seq)
        await write(rules_webhooks.test, "lab", "ci")
        await webhooks.deliver_due()
        assert (await process.stdout.readline()).decode().startswith("webhook.test ")
        assert sum(row.delivered for row in await replica.rows(OUTBOX)) == 3
