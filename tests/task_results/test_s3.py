"""The store in a bucket: a real server of S3's API, kills, and a bucket that is away."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import killing_on_both, on_postgresql, on_sqlite
from rest import V1, report
from servers import ServerProcess, free_port
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import suspend, until, wait_until

from task_results.test_killed import expire_uploads, half_upload, held_task, total
from task_results.test_uploads import MIB, Trickle
from zndraw_joblib.server.db.tables import TaskResult
from zndraw_joblib.server.host.mount import JobLib

_PROGRAM = Path(__file__).parents[2] / ".venv-s3/bin/moto_server"
_KEYS = {"AWS_ACCESS_KEY_ID": "joblib", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}
UNAVAILABLE = "/v1/problems/service-unavailable"
_CONTENT = os.urandom(1024) * 20_000


def use_endpoint(monkeypatch: pytest.MonkeyPatch, port: int) -> str:
    """Let servers use S3 on this port; return its URL."""
    url = f"http://127.0.0.1:{port}"
    for name, value in {**_KEYS, "AWS_ENDPOINT_URL": url}.items():
        monkeypatch.setenv(name, value)
    return url


class Bucket:
    """A bucket of a server of S3's API."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self._url = f"{url}/results"
        assert httpx.put(self._url).status_code == 200

    def keys(self) -> list[str]:
        """Return the names of all objects."""
        return re.findall("<Key>(.*?)</Key>", httpx.get(self._url, params={"list-type": 2}).text)

    def unfinished(self) -> list[str]:
        """Return the names of all uploads in parts that have begun and not ended."""
        return re.findall("<Key>(.*?)</Key>", httpx.get(self._url, params={"uploads": ""}).text)


def _accepts(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Return a new bucket."""
    if not _PROGRAM.exists():
        pytest.skip("moto is not there, so this test did not run: `make s3` sets it up")
    port = free_port()
    url = use_endpoint(monkeypatch, port)
    with subprocess.Popen([_PROGRAM, "-p", str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _accepts(port), 60)
            yield Bucket(process, url)
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


async def expire_all(engine: AsyncEngine) -> None:
    """Let the time of all results be over."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with engine.begin() as connection:
        await connection.execute(update(TaskResult.__table__).values(expires_at=past))


async def upload(client: httpx.AsyncClient, task: dict[str, Any], content: bytes) -> httpx.Response:
    """Upload the result of the first attempt of a task."""
    return await client.put(f"{V1}/tasks/{task['id']}/result", params={"attempt": 1}, content=content)


@pytest.fixture
def server_settings(database_url: str, bucket: Bucket) -> dict[str, Any]:
    """Return the settings of servers of one queue and bucket."""
    store = {"task_result_backend": "s3", "task_result_bucket": "s3://results/joblib"}
    return {"database_url": database_url, "sweeper_interval_seconds": 0.2, **store}


def url_of(task: dict[str, Any]) -> str:
    """Return the path of the result of a task."""
    return f"{V1}/tasks/{task['id']}/result"


@pytest.mark.slow
@pytest.mark.timeout(300)
@killing_on_both
async def test_results_outlive_their_server(
    server_settings: dict[str, Any], bucket: Bucket, engine: AsyncEngine
) -> None:
    """Kills in an upload, and between an upload and its report, lose and leave nothing."""
    with ServerProcess(**server_settings) as first:
        async with first.client() as client:
            task, other = await held_task(client), await held_task(client)
            assert (await upload(client, task, _CONTENT)).status_code == 200
            sender = half_upload(first, other)
            await until_reserved(engine)
            first.process.kill()
            sender.kill()
            sender.wait()
    assert len(bucket.keys()) == 1
    with ServerProcess(**server_settings) as second:
        async with second.client() as client:
            assert (await report(client, task, "completed", attempt=1)).status_code == 200
            assert (await client.get(url_of(task))).content == _CONTENT
            part = await client.get(url_of(task), headers={"Range": "bytes=9000000-9000009"})
            assert (part.status_code, part.content) == (206, _CONTENT[9_000_000:9_000_010])
            await expire_uploads(engine)
            assert (await upload(client, other, b"again")).status_code == 200
            assert (await report(client, other, "completed", attempt=1)).status_code == 200
            await expire_all(engine)
            await until(lambda: not bucket.keys())
            assert (await client.get(url_of(task))).status_code == 410


@pytest.mark.slow
@pytest.mark.timeout(300)
@on_postgresql
async def test_servers_share_a_bucket_that_does_not_respond_for_a_while(
    server_settings: dict[str, Any], bucket: Bucket
) -> None:
    """Uploads are refused with the reason meanwhile, and succeed when they are repeated."""
    with ServerProcess(**server_settings) as one, ServerProcess(**server_settings) as two:
        async with one.client() as first, two.client() as second:
            task = await held_task(first)
            suspend(bucket.process.pid)
            away = await upload(first, task, _CONTENT)
            assert (away.status_code, "bucket" in away.json()["detail"]) == (503, True)
            bucket.process.send_signal(signal.SIGCONT)
            assert (await upload(second, task, _CONTENT)).status_code == 200
            assert (await report(first, task, "completed", attempt=1)).status_code == 200
            answers = await asyncio.gather(*(client.get(url_of(task)) for client in (first, second)))
            assert [answer.content for answer in answers] == [_CONTENT] * 2


async def until_reserved(engine: AsyncEngine) -> None:
    """Wait until the second upload has begun to arrive."""

    async def is_reserved() -> bool:
        return await total(engine) > len(_CONTENT) + 2_000_000

    await until(is_reserved)


class Large(Trickle):
    """The body of an upload in parts, of which the first have arrived in the bucket when it stops."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(20 * MIB)
        self._bucket = bucket

    async def until_in_parts(self) -> None:
        """Wait until the store has begun to send parts."""
        await self.arrived.wait()
        await until(self._bucket.unfinished)


@on_sqlite
@pytest.mark.parametrize("backend", ["s3"])
async def test_an_upload_in_parts_that_ends_early_is_answered_as_by_other_stores(
    bucket: Bucket, client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib
) -> None:
    """The bucket is told to drop its parts, also when its client is gone."""
    joblib.settings.max_task_result_bytes = 32 * MIB
    body = Large(bucket)
    earlier = asyncio.create_task(upload(client, held, body))
    await body.until_in_parts()
    assert (await upload(client, held, b"later")).status_code == 200
    assert ((await earlier).status_code, (await earlier).json()["type"]) == (409, "/v1/problems/conflict")
    assert (len(bucket.keys()), bucket.unfinished()) == (1, [])

    body = Large(bucket)
    leaving = asyncio.create_task(upload(client, held, body))
    await body.until_in_parts()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await until(lambda: not bucket.unfinished())

    joblib.settings.upload_timeout_seconds = 0.2
    assert (await upload(client, held, Large(bucket))).status_code == 408
    assert (len(bucket.keys()), bucket.unfinished()) == (1, [])


@on_sqlite
@pytest.mark.parametrize("backend", ["s3"])
async def test_a_bucket_that_goes_away_during_an_upload_is_a_503(
    bucket: Bucket, client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib
) -> None:
    """An upload that is too large is a 413 until then."""
    joblib.settings.max_task_result_bytes = 16 * MIB
    assert (await upload(client, held, aiter(Large(bucket)))).status_code == 413
    assert (bucket.keys(), bucket.unfinished()) == ([], [])
    joblib.settings.max_task_result_bytes = 32 * MIB
    body = Large(bucket)
    away = asyncio.create_task(upload(client, held, body))
    await body.until_in_parts()
    bucket.process.kill()
    bucket.process.wait()
    body.end.set()
    assert ((await away).status_code, (await away).json()["type"]) == (503, UNAVAILABLE)
    assert "bucket of the task results failed" in (await away).json()["detail"]


@on_sqlite
@pytest.mark.parametrize("backend", ["s3"])
async def test_a_bucket_that_is_away_costs_no_task(
    monkeypatch: pytest.MonkeyPatch, client: httpx.AsyncClient, held: dict[str, Any], engine: AsyncEngine
) -> None:
    """An upload is refused with the reason, and leaves nothing; a short result needs no bucket."""
    use_endpoint(monkeypatch, free_port())
    refused = await upload(client, held, bytes(2_000_000))
    assert (refused.status_code, refused.json()["type"]) == (503, UNAVAILABLE)
    assert "bucket of the task results failed" in refused.json()["detail"]
    assert (await report(client, held, "completed", attempt=1, result=3)).json()["result"] == 3
    async with engine.connect() as connection:
        kept = await connection.exec_driver_sql("SELECT count(*) FROM joblib_task_result WHERE task_seq = 1")
        assert kept.scalar_one() == 0
