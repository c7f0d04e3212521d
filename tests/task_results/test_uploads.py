"""Results that are uploaded: the same on each store and database."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import redis.asyncio
from fastapi import FastAPI
from rest import V1, claim, get_task, register, report, submit
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db.tables import ResultPart, TaskResult
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import rules_results, sql_results
from zndraw_joblib.server.queue.rules_tokens import digest
from zndraw_joblib.server.results import stores
from zndraw_joblib.server.results.results import content_store
from zndraw_joblib.server.results.stores import MemoryResults
from zndraw_joblib.wire.problems import ServiceUnavailable

MIB = 1024 * 1024
LARGE = bytes(range(256)) * (10 * 1024) + b"the end"
results = TaskResult.__table__
# The rows of results are the same beside each store: those that are no database are tested on SQLite.
PLACES = [
    ("database", "sqlite"),
    ("database", "postgresql"),
    *((name, "sqlite") for name in ("memory", "files", "redis")),
]
on_one_store = pytest.mark.parametrize("place", PLACES[:2], ids="-".join, indirect=True)


@pytest.fixture(params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the name of a store, and the kind of the database beside it."""
    names: tuple[str, str] = request.param
    return names


@pytest.fixture
def backend(place: tuple[str, str]) -> str:
    """Return the name of a store."""
    return place[0]


@pytest.fixture
def kind(place: tuple[str, str]) -> str:
    """Return the kind of the database."""
    return place[1]


def path(task: dict[str, Any]) -> str:
    """Return the path of a task's result."""
    return f"{V1}/tasks/{task['id']}/result"


async def upload(
    client: httpx.AsyncClient, task: dict[str, Any], content: Any = LARGE, attempt: int = 1, **query: Any
) -> httpx.Response:
    """Upload a result."""
    params = {"attempt": attempt, **query}
    headers = {"Content-Type": "image/png"}
    return await client.put(path(task), params=params, content=content, headers=headers)


async def hold(client: httpx.AsyncClient, count: int, name: str = "Many") -> list[dict[str, Any]]:
    """Submit tasks as a client, and return them as its worker holds them."""
    job = await register(client, name=name, room="lab")
    for _ in range(count):
        await submit(client, job)
    tasks = [await claim(client, job["worker_id"]) for _ in range(count)]
    held = [task for task in tasks if task is not None]
    for task in held:
        assert (await report(client, task, "running", attempt=1)).status_code == 200
    return held


@asynccontextmanager
async def user(app: FastAPI, name: str) -> AsyncIterator[httpx.AsyncClient]:
    """Return the client of another user."""
    token = f"token-of-{name}-for-the-tests"
    await app.state.joblib.runtime.write(
        partial(sql_operators.add_token, name=name, digest=digest(token), is_superuser=False)
    )
    route, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=route, base_url="http://test", headers=headers) as other:
        yield other


class Trickle:
    """The body of an upload that sends some bytes, and nothing more until `end` is set."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.arrived, self.end = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(0, self._size, MIB // 2):
            yield bytes(MIB // 2)
        self.arrived.set()
        await self.end.wait()


async def total(joblib: JobLib) -> int:
    """Return the size of all content, as it is counted."""
    size: int = await joblib.runtime.database.read(sql_results.total)
    return size


async def expire_all(rows: AsyncEngine) -> None:
    """Let the time of all results have passed."""
    async with rows.begin() as connection:
        past = datetime.now(UTC) - timedelta(seconds=1)
        await connection.execute(update(results).values(expires_at=past))


async def check_all(rows: AsyncEngine) -> None:
    """Let it be time to check whether the attempts of all results have completed."""
    async with rows.begin() as connection:
        past = datetime.now(UTC) - timedelta(seconds=1)
        await connection.execute(update(results).values(check_at=past))


def files_in(folder: str, names: list[str]) -> list[str]:
    """Return the paths of files."""
    return [os.path.join(folder, name) for name in names]


async def contents(joblib: JobLib, rows: AsyncEngine, directory: Path | None) -> int:
    """Return how many contents the store keeps."""
    backend = joblib.settings.task_result_backend
    if backend == "files":
        # No other user may read results.
        for folder, _, files in os.walk(directory or ""):
            assert all(os.stat(path).st_mode & 0o077 == 0 for path in (folder, *files_in(folder, files)))
        return sum(len(files) for _, _, files in os.walk(directory or ""))
    store = joblib.runtime.content_store
    if backend == "memory":
        return store.value_count if isinstance(store, MemoryResults) else 0
    if backend == "redis":
        async with redis.asyncio.from_url(joblib.settings.redis_url) as client:
            keys = await client.keys(f"{joblib.settings.redis_prefix}:tasks:task-result:*")
        return len([key for key in keys if not key.endswith(b":version")])
    async with rows.connect() as connection:
        kept = func.count(ResultPart.__table__.c.result_n.distinct())
        count: int = (await connection.execute(select(kept))).scalar_one()
        return count


async def test_an_uploaded_result_is_returned_as_it_was(
    client: httpx.AsyncClient, held: dict[str, Any]
) -> None:
    """Its bytes, content type, name and ETag; the task's result in the row is null."""
    response = await upload(client, held, filename="../a/my plot é.png")
    assert response.status_code == 200, response.text
    stored = response.json()
    digest = sha256(LARGE).hexdigest()[:32]
    expected = {"content_type": "image/png", "size": len(LARGE), "etag": digest, "filename": "my plot é.png"}
    assert {name: stored[name] for name in expected} == expected
    kept = datetime.fromisoformat(stored["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=6.9) < kept < timedelta(days=7.1)
    assert (await report(client, held, "completed", attempt=1)).status_code == 200
    assert (await get_task(client, held))["stored_result"] == stored
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"][0]["stored_result"] == stored
    got = await client.get(path(held))
    assert got.status_code == 200
    assert got.content == LARGE
    assert got.headers["content-type"] == "image/png"
    assert got.headers["content-length"] == str(len(LARGE))
    assert got.headers["etag"] == f'"{digest}"'
    assert got.headers["content-disposition"] == "inline; filename*=UTF-8''my%20plot%20%C3%A9.png"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-security-policy"] == "sandbox"
    head = await client.head(path(held))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(LARGE))


async def test_ranges(client: httpx.AsyncClient, held: dict[str, Any]) -> None:
    """A range gets 206, and where its bytes are; also across the parts in which they are stored."""
    assert (await upload(client, held)).status_code == 200
    await report(client, held, "completed", attempt=1)
    end = len(LARGE) - 1
    for wanted, first, last in (
        ("0-0", 0, 0),
        ("5-", 5, end),
        ("-7", end - 6, end),
        (f"{MIB - 3}-{MIB + 3}", MIB - 3, MIB + 3),
        (f"{2 * MIB}-{2 * MIB + 9}", 2 * MIB, 2 * MIB + 9),
        ("0-99999999", 0, end),
        ("-99999999", 0, end),
    ):
        got = await client.get(path(held), headers={"Range": f"bytes={wanted}"})
        assert got.status_code == 206
        assert got.content == LARGE[first : last + 1]
        assert got.headers["content-range"] == f"bytes {first}-{last}/{len(LARGE)}"
        assert got.headers["accept-ranges"] == "bytes"


async def test_conditional_requests(client: httpx.AsyncClient, held: dict[str, Any]) -> None:
    """A known ETag gets 304; a range gets all bytes after a change, and 416 behind the end."""
    etag = f'"{(await upload(client, held)).json()["etag"]}"'
    await report(client, held, "completed", attempt=1)
    known = await client.get(path(held), headers={"If-None-Match": f'"other", W/{etag}'})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", etag)
    for if_range, status in ((etag, 206), ('"other"', 200)):
        got = await client.get(path(held), headers={"Range": "bytes=1-2", "If-Range": if_range})
        assert (got.status_code, got.content) == (status, LARGE[1:3] if status == 206 else LARGE)
    for wanted in (f"bytes={len(LARGE)}-", "bytes=-0"):
        beyond = await client.get(path(held), headers={"Range": wanted})
        assert beyond.status_code == 416
        assert beyond.headers["content-range"] == f"bytes */{len(LARGE)}"
        assert beyond.json()["type"] == "/v1/problems/range-not-satisfiable"
    for ignored in ("bytes=1-2,4-5", "items=1-2", "bytes=5-2", "bytes=-"):
        assert (await client.get(path(held), headers={"Range": ignored})).status_code == 200


async def test_an_empty_result(client: httpx.AsyncClient, held: dict[str, Any]) -> None:
    """It is stored and returned like any other."""
    assert (await upload(client, held, b"")).json()["size"] == 0
    await report(client, held, "completed", attempt=1)
    got = await client.get(path(held))
    assert (got.status_code, got.content, got.headers["content-length"]) == (200, b"", "0")
    assert (await client.get(path(held), headers={"Range": "bytes=0-"})).status_code == 416


async def test_an_inline_result_has_the_same_endpoint(
    client: httpx.AsyncClient, held: dict[str, Any]
) -> None:
    """A result in the report is returned as JSON, with an ETag and ranges; before the end there is none."""
    early = await client.get(path(held))
    assert (early.status_code, early.json()["type"]) == (404, "/v1/problems/result-not-found")
    await report(client, held, "completed", attempt=1, result={"energy": [1.5]})
    got = await client.get(path(held))
    assert (got.status_code, got.json()) == (200, {"energy": [1.5]})
    assert got.headers["content-type"] == "application/json"
    again = await client.get(path(held), headers={"If-None-Match": got.headers["etag"]})
    assert again.status_code == 304
    assert (await client.get(path(held), headers={"Range": "bytes=0-3"})).content == got.content[:4]


async def test_an_attempt_that_lost_its_task_uploads_nothing(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """It is refused with a 409 before the upload; after a loss during the upload, its content is deleted."""
    await client.post(f"{V1}/tasks/{held['id']}/release", json={"attempt": 1})
    refused = await upload(client, held)
    assert (refused.status_code, refused.json()["reason"]) == (409, "released")
    task = await claim(client, held["worker_id"])
    assert task is not None

    async def body() -> AsyncIterator[bytes]:
        yield LARGE
        await client.post(f"{V1}/tasks/{held['id']}/release", json={"attempt": 2})
        assert await claim(client, held["worker_id"]) is not None
        yield b"more"

    lost = await upload(client, held, body(), attempt=2)
    assert (lost.status_code, lost.json()["type"]) == (409, "/v1/problems/stale-report")
    assert await total(joblib) == 0
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 0


async def test_a_task_that_ended_takes_no_result(client: httpx.AsyncClient, held: dict[str, Any]) -> None:
    """Nor does an unknown task; a missing or invalid attempt is a 422."""
    await report(client, held, "completed", attempt=1, result=1)
    assert (await upload(client, held)).status_code == 409
    assert (await upload(client, {"id": "00000000-0000-4000-8000-000000000000"})).status_code == 404
    missing = await client.put(path(held), content=b"x")
    assert (missing.status_code, missing.json()["detail"]) == (422, "query.attempt: it is missing")
    assert (await client.put(path(held), params={"attempt": "x"}, content=b"x")).status_code == 422


async def test_another_attempt_hides_the_result_of_the_former(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """The new attempt's result takes its place, and the former content is deleted."""
    await upload(client, held)
    await client.post(f"{V1}/tasks/{held['id']}/release", json={"attempt": 1})
    assert await claim(client, held["worker_id"]) is not None
    assert (await client.get(path(held))).status_code == 404
    await upload(client, held, b"second", attempt=2)
    await upload(client, held, b"repeated", attempt=2)
    await report(client, held, "running", attempt=2)
    await report(client, held, "completed", attempt=2)
    assert (await client.get(path(held))).content == b"repeated"
    while (await joblib.task_results.prune()).deleted:
        pass
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 1
    assert await total(joblib) == len(b"repeated") + sql_results.RESULT_BYTES


async def test_a_large_result_is_refused(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """With a 413 that names the setting, whether or not its length was announced."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield bytes(MIB)

    for content in (bytes(4 * MIB + 1), body()):
        refused = await upload(client, held, content)
        assert refused.status_code == 413
        assert "max_task_result_bytes" in refused.json()["detail"]
    assert (await upload(client, held, bytes(4 * MIB))).status_code == 200
    assert await total(joblib) == 4 * MIB + sql_results.RESULT_BYTES
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 1


async def test_all_results_have_a_limit(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """What does not fit is refused with a 507 that names the setting; what is stored stays.

    What never fits, into all or into the share of a user, is a 413 at once: to wait would not help.
    """
    joblib.settings.max_stored_result_bytes = 2 * MIB

    async def large() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(MIB)

    for share, too_large in ((1, (bytes(2 * MIB), large())), (0.75, (bytes(3 * MIB // 2), large()))):
        joblib.settings.max_share_per_user = share
        for content in too_large:
            refused = await upload(client, held, content)
            assert refused.status_code == 413, refused.text
            assert ("max_share_per_user" in refused.json()["detail"]) == (share < 1)
            assert "max_stored_result_bytes" in refused.json()["detail"]
    joblib.settings.max_share_per_user = 1
    first = bytes(MIB)
    assert (await upload(client, held, first)).status_code == 200

    async def body() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        yield bytes(MIB // 2)

    for content in (bytes(3 * MIB // 2), body()):
        refused = await upload(client, held, content)
        assert refused.status_code == 507, refused.text
        assert "max_stored_result_bytes" in refused.json()["detail"]
    await report(client, held, "completed", attempt=1)
    assert (await client.get(path(held))).content == first
    assert await total(joblib) == MIB + sql_results.RESULT_BYTES
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 1


async def test_concurrent_uploads_never_exceed_the_limit(client: httpx.AsyncClient, joblib: JobLib) -> None:
    """Of ten uploads of a megabyte, as many are stored as fit; others get 503 while some are under way."""
    joblib.settings.max_stored_result_bytes = 3 * MIB + 3 * sql_results.RESULT_BYTES
    joblib.settings.max_share_per_user = 1
    tasks = await hold(client, 10)
    answers = await asyncio.gather(*(upload(client, task, bytes([n]) * MIB) for n, task in enumerate(tasks)))
    stored = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    assert {answer.status_code for answer in answers} <= {200, 503, 507}
    assert 1 <= len(stored) <= 3
    assert await total(joblib) <= joblib.settings.max_stored_result_bytes
    for n in stored:
        await report(client, tasks[n], "completed", attempt=1)
        assert (await client.get(path(tasks[n]))).content == bytes([n]) * MIB


async def test_an_expired_result_is_gone(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """It gets 410 at once; a cycle of the sweeper deletes its content, and it still gets 410."""
    await upload(client, held)
    await report(client, held, "completed", attempt=1)
    await expire_all(rows)
    for _ in range(2):
        gone = await client.get(path(held))
        assert (gone.status_code, gone.json()["type"]) == (410, "/v1/problems/result-expired")
        assert (await client.head(path(held))).status_code == 410
        await joblib.sweeper.cycle()
    assert await total(joblib) == 0
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 0


async def test_a_result_is_pruned_with_its_task(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """Neither its row nor its content stays. The statistics have read the task before."""
    await upload(client, held)
    await report(client, held, "completed", attempt=1)
    joblib.settings.keep_finished_days = 1e-9

    async def is_pruned() -> bool:
        # The server's own loop may do either at this moment; then these do nothing.
        await joblib.rollups.update(timedelta(0))
        await joblib.sweeper.cycle()
        return (await client.get(path(held))).status_code == 404 and await total(joblib) == 0

    await until(is_pruned)
    async with rows.connect() as connection:
        assert (await connection.execute(select(func.count()).select_from(results))).scalar_one() == 0
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 0


async def test_a_client_that_disconnects_leaves_nothing(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """The content of an upload that stops in the middle is deleted, and the result is the one before."""
    await upload(client, held, b"before")

    async def body() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionResetError

    with suppress(ConnectionResetError):
        await upload(client, held, body())
    await report(client, held, "completed", attempt=1)
    assert (await client.get(path(held))).content == b"before"
    assert await total(joblib) == len(b"before") + sql_results.RESULT_BYTES
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 1


async def test_an_abandoned_upload_is_deleted(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """The content and the reserved bytes of an upload whose server ended are freed after its lease."""

    runtime, quota = joblib.runtime, sql_results.Quota(MIB, MIB, timedelta(days=1))
    who = rules_results.Upload(Identity("admin", is_superuser=True), UUID(held["id"]), 1)

    await runtime.write(rules_results.begin, who, "task-result:abcd", 7, quota)
    await content_store(runtime).store_stream("task-result:abcd", stores.stream(LARGE), 60)
    assert await total(joblib) == 7 + sql_results.RESULT_BYTES
    assert (await joblib.task_results.prune()).deleted == 0
    await expire_all(rows)
    assert (await joblib.task_results.prune()).deleted == 1
    assert await total(joblib) == 0
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 0
    # One that has been abandoned becomes no result any more, also while its lease lasts.
    n = await runtime.write(rules_results.begin, who, "task-result:abce", 7, quota)
    assert await runtime.write(rules_results.abandon, n)
    new = sql_results.NewResult(7, "text/plain", "etag", None)
    with pytest.raises(ServiceUnavailable):
        await runtime.write(rules_results.finish, who, n, new, quota)


class _LateStore:
    """A store that has taken the last bytes of an upload and completes it later, as a bucket may do."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.has_all, self.late = asyncio.Event(), asyncio.Event()
        self.completed: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        content = b"".join([chunk async for chunk in chunks])
        self.has_all.set()
        self.completed = asyncio.create_task(self._complete(key, content, ttl))
        await asyncio.shield(self.completed)

    async def _complete(self, key: str, content: bytes, ttl: int) -> None:
        await self.late.wait()
        await self._store.store_stream(key, stores.stream(content), ttl)


@on_one_store
async def test_content_that_a_store_completes_after_its_upload_ended_is_deleted(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """A lease later; until then it counts for nobody, and it never is a result."""
    late = joblib.runtime.content_store = _LateStore(content_store(joblib.runtime))
    uploading = asyncio.create_task(upload(client, held))
    await late.has_all.wait()
    uploading.cancel()
    with suppress(asyncio.CancelledError):
        await uploading
    await until(lambda: has_no_bytes(joblib))
    late.late.set()
    assert late.completed is not None
    await late.completed
    joblib.runtime.content_store = late._store
    assert await contents(joblib, rows, None) == 1
    assert (await joblib.task_results.prune()).deleted == 0
    await expire_all(rows)
    assert (await joblib.task_results.prune()).deleted == 1
    assert (await contents(joblib, rows, None), await total(joblib)) == (0, 0)


async def has_no_bytes(joblib: JobLib) -> bool:
    """Return whether no content is counted."""
    return await total(joblib) == 0


@pytest.mark.parametrize("place", [("files", "sqlite")], ids="-".join, indirect=True)
async def test_content_that_cannot_be_deleted_stops_no_other(
    client: httpx.AsyncClient, joblib: JobLib, rows: AsyncEngine, store_settings: ServerSettings
) -> None:
    """Here a folder is in the place of a file. Else no room would ever be free again."""
    for task in await hold(client, 2):
        await upload(client, task)
        await report(client, task, "completed", attempt=1)
    await expire_all(rows)
    first, _ = await joblib.runtime.database.read(rules_results.expired_content)
    name = first.content_key.rpartition(":")[2]
    file = Path(str(store_settings.task_result_directory)) / name[:2] / name
    file.unlink()
    file.mkdir()
    assert (await joblib.task_results.prune()).deleted == 1
    assert (await joblib.task_results.prune()).deleted == 0
    assert await total(joblib) == len(LARGE) + sql_results.RESULT_BYTES


async def test_provider_results_evict_no_task_result(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, store_settings: ServerSettings
) -> None:
    """However little room the cache of provider results has."""
    if store_settings.task_result_backend == "database":
        store_settings.provider_result_backend = "database"
    await upload(client, held)
    await report(client, held, "completed", attempt=1)
    joblib.settings.max_cached_bytes = 1
    for n in range(20):
        await joblib.results.store(f"provider-result:{n}", bytes(MIB), 1000)
    assert (await client.get(path(held))).content == LARGE


async def test_only_its_worker_may_upload_and_readers_may_read(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib
) -> None:
    """A stranger gets 403 for an upload; every user may read on the standalone server."""
    token = "token-of-a-stranger-for-the-tests"
    await joblib.runtime.write(
        partial(sql_operators.add_token, name="stranger", digest=digest(token), is_superuser=False)
    )
    headers = {"Authorization": f"Bearer {token}"}
    refused = await client.put(path(held), params={"attempt": 1}, content=b"x", headers=headers)
    assert (refused.status_code, refused.json()["type"]) == (403, "/v1/problems/forbidden")
    await upload(client, held, b"mine")
    await report(client, held, "completed", attempt=1)
    assert (await client.get(path(held), headers=headers)).content == b"mine"
    nobody = await client.get(path(held), headers={"Authorization": ""})
    assert nobody.status_code == 401


async def test_a_second_job_of_the_same_name_shares_nothing(client: httpx.AsyncClient) -> None:
    """Results belong to their tasks."""
    job = await register(client)
    tasks = [await submit(client, job) for _ in range(2)]
    for n in range(2):
        task = await claim(client, job["worker_id"])
        assert task is not None
        await report(client, task, "running", attempt=1)
        await upload(client, task, f"content {n}".encode())
        await report(client, task, "completed", attempt=1)
    for n, task in enumerate(tasks):
        assert (await client.get(path(task))).content == f"content {n}".encode()


@pytest.mark.parametrize("end", ["failed", "released", "running", "claimed again"])
async def test_only_a_completed_task_has_a_result(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine, end: str
) -> None:
    """Otherwise an upload is not returned, and a cycle of the sweeper deletes it unless its attempt runs."""
    await upload(client, held)
    if end == "failed":
        await report(client, held, "failed", attempt=1, error="after the upload")
    elif end != "running":
        await client.post(f"{V1}/tasks/{held['id']}/release", json={"attempt": 1})
    if end == "claimed again":
        assert await claim(client, held["worker_id"]) is not None
    for _ in range(2):
        assert (await client.get(path(held))).json()["type"] == "/v1/problems/result-not-found"
        assert "stored_result" not in await get_task(client, held)
        await check_all(rows)
        await joblib.sweeper.cycle()
    is_kept = end == "running"
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == is_kept
    assert bool(await total(joblib)) == is_kept
    if is_kept:
        await report(client, held, "completed", attempt=1)
        assert (await client.get(path(held))).content == LARGE


async def test_the_result_of_a_completed_task_stays(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """It is checked once."""
    await upload(client, held)
    await report(client, held, "completed", attempt=1)
    await check_all(rows)
    await joblib.sweeper.cycle()
    assert (await client.get(path(held))).content == LARGE
    async with rows.connect() as connection:
        assert (await connection.execute(select(results.c.check_at))).all() == [(None,)]


async def test_an_expired_result_of_an_attempt_that_fails_leaves_no_row(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """Its content was deleted while the attempt ran: nothing else would delete the row."""
    await upload(client, held)
    await expire_all(rows)
    await joblib.sweeper.cycle()
    assert await total(joblib) == 0
    await report(client, held, "failed", attempt=1, error="after the upload")
    await check_all(rows)
    await joblib.sweeper.cycle()
    async with rows.connect() as connection:
        assert (await connection.execute(select(results.c.n))).all() == []


async def test_an_upload_of_unknown_length_reserves_room_as_it_grows(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """It is refused before it has sent more than all results may have; one that fits counts as it is."""
    joblib.settings.max_stored_result_bytes = 2 * MIB + sql_results.RESULT_BYTES
    joblib.settings.max_share_per_user = 1
    totals, sent = [], 0

    async def body(pieces: int) -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(pieces):
            yield bytes(MIB // 2)
            sent += 1
            totals.append(await total(joblib) - sql_results.RESULT_BYTES)

    assert (await upload(client, held, body(3))).status_code == 200
    assert totals == [MIB, MIB, 2 * MIB]
    assert await total(joblib) == 3 * MIB // 2 + sql_results.RESULT_BYTES
    joblib.settings.max_stored_result_bytes *= 2
    sent = 0
    refused = await upload(client, held, body(100))
    assert (refused.status_code, refused.json()["type"]) == (507, "/v1/problems/result-store-full")
    assert sent <= 5
    assert await total(joblib) == 3 * MIB // 2 + sql_results.RESULT_BYTES


async def test_an_upload_that_stalls_is_refused(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """With a 408 that names the setting; the content is deleted, and another upload succeeds."""
    joblib.settings.upload_timeout_seconds = 0.2
    over = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield LARGE
        await over.wait()

    refused = await upload(client, held, body())
    assert (refused.status_code, refused.json()["type"]) == (408, "/v1/problems/upload-stalled")
    assert "upload_timeout_seconds" in refused.json()["detail"]
    assert await total(joblib) == 0
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 0
    joblib.settings.upload_timeout_seconds = 60
    assert (await upload(client, held)).status_code == 200


@on_one_store
async def test_one_user_leaves_uploads_to_others(
    app: FastAPI, client: httpx.AsyncClient, joblib: JobLib
) -> None:
    """Slow uploads of one user reach its share: its further ones get 429, and another user uploads."""
    limit = joblib.settings.max_task_result_bytes
    bodies = [Trickle(limit) for _ in range(4)]
    async with user(app, "ada") as ada, user(app, "bob") as bob:
        tasks = await hold(ada, 5, "Adas")
        slow = [asyncio.create_task(upload(ada, *pair)) for pair in zip(tasks, bodies, strict=False)]
        await asyncio.gather(*(body.arrived.wait() for body in bodies))
        refused = await upload(ada, tasks[4], b"x")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert "max_share_per_user of 8 times max_task_result_bytes" in refused.json()["detail"]
        [task] = await hold(bob, 1, "Bobs")
        assert (await upload(bob, task, bytes(limit))).status_code == 200
        for body in bodies:
            body.end.set()
        assert [answer.status_code for answer in await asyncio.gather(*slow)] == [200] * 4


async def test_a_later_upload_of_the_same_result_ends_the_earlier(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib, rows: AsyncEngine
) -> None:
    """A client that lost its connection sends its result again; the earlier upload gets 409."""
    body = Trickle(MIB)
    earlier = asyncio.create_task(upload(client, held, body))
    await body.arrived.wait()
    assert (await upload(client, held)).status_code == 200
    assert ((await earlier).status_code, (await earlier).json()["type"]) == (409, "/v1/problems/conflict")
    await report(client, held, "completed", attempt=1)
    assert (await client.get(path(held))).content == LARGE
    assert await total(joblib) == len(LARGE) + sql_results.RESULT_BYTES
    assert await contents(joblib, rows, joblib.settings.task_result_directory) == 1


@on_one_store
async def test_a_stranger_ends_no_upload(
    app: FastAPI, client: httpx.AsyncClient, held: dict[str, Any]
) -> None:
    """Only a request that may upload the result does."""
    body = Trickle(MIB)
    earlier = asyncio.create_task(upload(client, held, body))
    await body.arrived.wait()
    async with user(app, "eve") as eve:
        assert (await upload(eve, held)).status_code == 403
    body.end.set()
    assert (await earlier).status_code == 200


@on_one_store
async def test_an_upload_that_is_too_slow_is_refused(
    client: httpx.AsyncClient, held: dict[str, Any], joblib: JobLib
) -> None:
    """It gets a 408 unless it sends 1 MiB in each `upload_timeout_seconds`, however short its pauses are."""
    joblib.settings.upload_timeout_seconds = 0.5
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(600):
            await asyncio.sleep(0.05)
            yield b"x"
            sent += 1

    refused = await upload(client, held, body())
    assert (refused.status_code, refused.json()["type"]) == (408, "/v1/problems/upload-stalled")
    assert sent < 600
    assert await total(joblib) == 0


@on_one_store
async def test_announced_bytes_are_reserved_as_they_arrive(client: httpx.AsyncClient, joblib: JobLib) -> None:
    """Uploads that announce much and send little do not fill the store."""
    joblib.settings.max_stored_result_bytes = 16 * MIB
    bodies = [Trickle(MIB // 2) for _ in range(4)]
    tasks = await hold(client, 5)
    headers = {"Content-Length": str(4 * MIB)}
    slow = [
        asyncio.create_task(client.put(path(task), params={"attempt": 1}, content=body, headers=headers))
        for task, body in zip(tasks, bodies, strict=False)
    ]
    await asyncio.gather(*(body.arrived.wait() for body in bodies))
    assert await total(joblib) == 4 * (MIB + sql_results.RESULT_BYTES)
    assert (await upload(client, tasks[4], bytes(4 * MIB - 8192))).status_code == 200
    for sender in slow:
        sender.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


@on_one_store
async def test_a_store_that_others_fill_at_the_moment_is_503(
    client: httpx.AsyncClient, joblib: JobLib
) -> None:
    """An upload that would fit without those under way gets 503 with Retry-After, not a final 507."""
    joblib.settings.max_stored_result_bytes = 4 * MIB
    joblib.settings.max_share_per_user = 1
    body = Trickle(2 * MIB)
    first, second = await hold(client, 2)
    slow = asyncio.create_task(upload(client, first, body))
    await body.arrived.wait()
    for content in (bytes(3 * MIB), Trickle(3 * MIB)):
        refused = await upload(client, second, content)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "max_stored_result_bytes" in refused.json()["detail"]
    body.end.set()
    assert (await slow).status_code == 200
    final = await upload(client, second, bytes(3 * MIB))
    assert (final.status_code, final.json()["type"]) == (507, "/v1/problems/result-store-full")


@on_one_store
async def test_one_user_leaves_the_store_to_others(
    app: FastAPI, client: httpx.AsyncClient, joblib: JobLib, rows: AsyncEngine
) -> None:
    """The results of one user's tasks have a share of the store; deleted content makes room again."""
    joblib.settings.max_stored_result_bytes = 8 * MIB
    async with user(app, "ada") as ada, user(app, "bob") as bob:
        tasks = await hold(ada, 2, "Adas")
        assert (await upload(ada, tasks[0], bytes(3 * MIB))).status_code == 200
        for content in (bytes(2 * MIB), aiter(Trickle(2 * MIB))):
            refused = await upload(ada, tasks[1], content)
            assert refused.status_code == 507
            assert "max_share_per_user of max_stored_result_bytes" in refused.json()["detail"]
        [task] = await hold(bob, 1, "Bobs")
        assert (await upload(bob, task, bytes(4 * MIB - 4096))).status_code == 200
        await expire_all(rows)
        while (await joblib.task_results.prune()).deleted:
            pass
        assert (await upload(ada, tasks[1], bytes(3 * MIB))).status_code == 200
