"""Actions on all tasks that match a filter, and the audit trail of operators' actions."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from databases import on_both, on_postgresql
from replica import ADMIN, Replica
from rest import V1, AsUser, claim, expect_problem, register, report, submit
from seeds import LONG_AGO, add_tasks, task
from sqlalchemy import func, select

from zndraw_joblib.server.admin import rules_searches, sql_lists, sql_searches
from zndraw_joblib.server.admin.rules_searches import BulkLimits, Confirmed
from zndraw_joblib.server.admin.sql_searches import Budget
from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.tables import AttemptDetailRecord, Task, TaskTag, metadata
from zndraw_joblib.server.process.ports import CursorPage
from zndraw_joblib.server.queue import rules_retention
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__
BULK = f"{V1}/tasks/bulk"


async def preview(client: httpx.AsyncClient, action: str, **wanted: Any) -> dict[str, Any]:
    """Return the preview of an action."""
    response = await client.post(f"{BULK}/preview", json={"action": action, "filter": wanted})
    assert response.status_code == 200, response.text
    return response.json()


async def act(
    client: httpx.AsyncClient, token: str, action: str, key: str | None = None, **wanted: Any
) -> httpx.Response:
    """Confirm an action; return the response."""
    headers = {} if key is None else {"Idempotency-Key": f'"{key}"'}
    return await client.post(BULK, json={"action": action, "filter": wanted, "token": token}, headers=headers)


async def trail(client: httpx.AsyncClient, **query: Any) -> list[tuple[str, str, Any]]:
    """Return action, actor and detail of the audit trail, newest first."""
    response = await client.get(f"{V1}/audit", params=query)
    assert response.status_code == 200, response.text
    return [(entry["action"], entry["actor"], entry["detail"]) for entry in response.json()["items"]]


async def fail_one(client: httpx.AsyncClient, job: dict[str, Any], room: str = "lab") -> str:
    """Submit a task and let it fail; return its id."""
    submitted = await submit(client, job, room)
    held = await claim(client, job["worker_id"])
    assert held is not None
    assert held["id"] == submitted["id"]
    assert (await report(client, held, "failed", attempt=held["attempt"], error="no")).status_code == 200
    return submitted["id"]


async def statuses(client: httpx.AsyncClient, ids: list[str]) -> list[str]:
    """Return the statuses of tasks."""
    return [(await client.get(f"{V1}/tasks/{task_id}")).json()["status"] for task_id in ids]


@on_both
async def test_an_action_affects_what_its_preview_counted(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """Retry, cancel, release and purge: not tasks that are newer, or have changed since the preview."""
    job = await register(client)
    ids = [await fail_one(client, job) for _ in range(4)]
    shown = await preview(client, "retry", status=["failed", "running"], room=["lab"])
    assert (shown["count"], shown["is_complete"], shown["limit"]) == (4, True, 10_000)
    assert [example["id"] for example in shown["examples"]] == ids
    assert {example["payload_preview"] for example in shown["examples"]} == {"{}"}
    assert datetime.fromisoformat(shown["expires_at"]) > datetime.now(UTC) + timedelta(minutes=8)
    newer = await fail_one(client, job)
    assert (await client.post(f"{V1}/tasks/{ids[0]}/retry")).status_code == 200
    wanted = {"room": ["lab"], "status": ["running", "failed"]}  # the order of lists does not matter
    first = await act(client, shown["token"], "retry", key="one", **wanted)
    assert first.json() == {"action": "retry", "affected": 3, "skipped": 0, "is_complete": True}
    assert await statuses(client, [*ids, newer]) == ["pending"] * 4 + ["failed"]
    assert (await act(client, shown["token"], "retry", **wanted)).json()["affected"] == 0
    await runtime.write(runtime_settings.put, "bulk_token_key", "another key")
    expect_problem(await act(client, shown["token"], "retry", **wanted), 422, "invalid-request")
    again = await act(client, shown["token"], "retry", key="one", **wanted)
    assert (again.status_code, again.json()) == (200, first.json())
    assert [action for action, _, _ in await trail(client, action="bulk.retry")] == ["bulk.retry"] * 2


@on_both
async def test_held_and_waiting_tasks_are_released_and_cancelled(client: httpx.AsyncClient) -> None:
    """An action without matches is recorded too."""
    job = await register(client)
    for _ in range(4):
        await submit(client, job)
    held = await claim(client, job["worker_id"])
    shown = await preview(client, "release")
    assert shown["count"] == 1
    assert (await act(client, shown["token"], "release")).json()["affected"] == 1
    assert await statuses(client, [held["id"]]) == ["pending"]
    shown = await preview(client, "cancel", job=[job["full_name"]], text="{}")
    result = await act(client, shown["token"], "cancel", job=[job["full_name"]], text="{}")
    assert (shown["count"], result.json()["affected"]) == (4, 4)
    shown = await preview(client, "purge", status=["pending"])
    assert shown["count"] == 0
    assert (await act(client, shown["token"], "purge", status=["pending"])).json()["affected"] == 0
    assert await trail(client) == [
        ("bulk.purge", "admin", {"affected": 0, "skipped": 0}),
        ("bulk.cancel", "admin", {"affected": 4, "skipped": 0}),
        ("bulk.release", "admin", {"affected": 1, "skipped": 0}),
    ]


@on_both
async def test_a_purge_deletes_all_that_belongs_to_its_tasks(replica: Replica) -> None:
    """The counts stay right; other tasks stay."""
    job = await replica.register()
    rows = [task(job.id, status, room_id=f"room-{n % 3}") for n in range(400) for status in TaskStatus]
    rows = [row for row in rows if row["status"] not in {"claimed", "running"}]
    await add_tasks(replica, rows)
    done = await apply(replica, Confirmed(ADMIN, BulkAction.PURGE, TaskFilter(room=["room-0", "room-1"]), 0))
    expected = sum(row["status"] != "pending" and row["room_id"] != "room-2" for row in rows)
    assert (done.affected, done.skipped, done.is_complete) == (expected, 0, True)
    left = (await replica.execute(select(func.count()).select_from(tasks))).scalar_one()
    assert left == len(rows) - expected


@on_both
async def test_a_purge_of_long_logs_takes_several_batches(replica: Replica) -> None:
    """A batch deletes at most 50,000 lines of logs, but at least one task; the next batch goes on."""
    job = await replica.register()
    await add_tasks(replica, [task(job.id, TaskStatus.COMPLETED) for _ in range(5)])
    lines = [25_000, 25_000, 60_000, 10_000, 10_000]
    seqs = sorted(row.seq for row in await replica.rows(tasks))
    logs = [{"task_seq": seq, "attempt": 1, "log_lines": n} for seq, n in zip(seqs, lines, strict=True)]
    await replica.add(AttemptDetailRecord.__table__, logs)
    left: list[int] = []

    async def write(work: Any, *args: Any) -> Any:
        result = await replica.runtime.write(work, *args)
        if work is rules_searches.apply_batch:
            left.append(len(await replica.rows(AttemptDetailRecord.__table__)))
        return result

    done = await apply(replica, Confirmed(ADMIN, BulkAction.PURGE, TaskFilter(), 0), write=write)
    assert (done.affected, done.skipped, left) == (5, 0, [3, 2, 0])
    assert await replica.rows(tasks) == []


async def apply(
    replica: Replica, confirmed: Confirmed, limits: BulkLimits | None = None, write: Any = None
) -> Any:
    """Preview and apply an action without HTTP."""
    runtime = replica.runtime
    limits = limits or BulkLimits(seconds=60)
    shown = await rules_searches.preview(runtime.database.read, runtime.write, confirmed, limits)
    assert shown.limit == limits.tasks
    checked = await runtime.database.read(rules_searches.verify, shown.token, confirmed)
    return await rules_searches.apply(runtime.database.read, write or runtime.write, checked, None, limits)


class Killed(Exception):
    """The process ends."""


@on_both
async def test_a_kill_between_two_batches_loses_nothing(replica: Replica) -> None:
    """Committed batches stay and are in the audit trail; a repeat affects the rest."""
    job = await replica.register()
    await add_tasks(replica, [task(job.id, TaskStatus.FAILED) for _ in range(1200)])
    batches = 0

    async def write(work: Any, *args: Any) -> Any:
        nonlocal batches
        batches += work is rules_searches.apply_batch
        if batches > 2:
            raise Killed
        return await replica.runtime.write(work, *args)

    confirmed = Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(job=[job.full_name]), 0)
    with pytest.raises(Killed):
        await apply(replica, confirmed, write=write)
    [entry] = await replica.rows(metadata.tables["joblib_audit"])
    assert (entry.action, entry.detail["skipped"]) == ("bulk.retry", 0)
    # On a slow machine the search for a batch ends early.
    affected = entry.detail["affected"]
    assert 0 < affected <= 1000
    assert (await apply(replica, confirmed)).affected == 1200 - affected


@on_postgresql
async def test_locked_tasks_are_skipped(replica: Replica) -> None:
    """The action does not wait for the transaction that locks them."""
    job = await replica.register()
    ids = await add_tasks(replica, [task(job.id, TaskStatus.FAILED) for _ in range(5)])
    async with replica.engine.begin() as connection:
        await connection.execute(select(tasks.c.seq).where(tasks.c.id.in_(ids[:2])).with_for_update())
        done = await apply(replica, Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(), 0))
    assert (done.affected, done.skipped) == (3, 2)


@on_both
async def test_an_action_affects_at_most_its_limit(replica: Replica) -> None:
    """The newest ones, and of a retry the oldest; preview and result say that there may be more."""
    job = await replica.register()
    ids = await add_tasks(replica, [task(job.id, TaskStatus.FAILED) for _ in range(9)])
    for action, count, left in ((BulkAction.RETRY, 5, ids[5:]), (BulkAction.PURGE, 3, ids[5:6])):
        done = await apply(
            replica, Confirmed(ADMIN, action, TaskFilter(), 0), BulkLimits(tasks=count, batch=2)
        )
        assert (done.affected, done.is_complete) == (count, False)
        assert [row.id for row in await replica.rows(tasks, tasks.c.status == "failed")] == left


@on_both
async def test_a_retry_finds_the_oldest_along_each_index(replica: Replica, subtests: pytest.Subtests) -> None:
    """Of any filter; it begins with `since` and ends with `until`, without reading what is outside."""
    job, other = await replica.register(), await replica.register("Other")
    group, root = uuid4(), uuid4()
    new = [
        {
            **task((other if n % 5 == 4 else job).id, TaskStatus.FAILED),
            **{"created_at": LONG_AGO + timedelta(hours=n), "group_id": group},
            **{"root": root, "parent": root},
            **{"room_id": "lab" if n % 2 else "attic", "tags": ["a"]},
        }
        for n in range(600)
    ]
    ids = await add_tasks(replica, new)
    rows = await replica.rows(tasks)
    await replica.add(
        TaskTag.__table__, [{"task_seq": r.seq, "tag": "a", "room_id": r.room_id} for r in rows]
    )
    late = {"since": LONG_AGO + timedelta(hours=500), "until": LONG_AGO + timedelta(hours=590)}
    cases: list[tuple[dict[str, Any], list[UUID]]] = [
        ({}, ids),
        (late, ids[500:590]),
        ({"room": ["lab"]}, ids[1::2]),
        ({"room": ["lab", "attic"], **late}, ids[500:590]),
        ({"job": [other.full_name]}, ids[4::5]),
        ({"job": [other.full_name], "room": ["attic"]}, ids[4::10]),
        *(({name: value, **late}, ids[500:590]) for name, value in (("group", group), ("root", root))),
        ({"parent": root, "status": ["failed"]}, ids),
        ({"tag": ["a", "b"]}, ids),
        ({"tag": ["a"], "room": ["lab"], **late}, ids[501:590:2]),
    ]
    budget = Budget(rows=100_000, seconds=60)
    for wanted, expected in cases:
        with subtests.test(wanted=wanted):
            task_filter = TaskFilter(**{"status": ["failed", "cancelled"], **wanted})
            resolved = await replica.runtime.database.read(rules_searches.resolve, task_filter)
            oldest = resolved.limited_to(2**60, oldest_first=True)
            found, after = list[UUID](), None
            while True:
                part = await replica.runtime.database.read(sql_searches.find, oldest, after, 70, budget)
                found, after = found + [row.id for row in part.rows], part.after
                if after is None:
                    break
            assert found == expected


async def test_a_token_is_for_its_caller_action_and_filter(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime
) -> None:
    """Any other use of it, and an old or changed one, is a 422 that names it."""
    job = await register(client)
    await fail_one(client, job)
    token = (await preview(client, "retry", room=["lab"]))["token"]
    root = await as_user("root", is_superuser=True)
    text, signature = token.split(".")
    wrong_texts = ["", ".", "é.é", text, f"AA.{signature}", f"{text}.{signature[:-1]}0x"]
    cases = [
        (root, token, "retry", {"room": ["lab"]}),
        (client, token, "purge", {"room": ["lab"]}),
        (client, token, "retry", {}),
        (client, token, "retry", {"room": ["lab", "attic"]}),
        *((client, wrong, "retry", {"room": ["lab"]}) for wrong in wrong_texts),
    ]
    for caller, given, action, wanted in cases:
        response = await act(caller, given, action, **wanted)
        assert "body.token" in expect_problem(response, 422, "invalid-request")["detail"]
    confirmed = Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(room=["lab"]), 1)
    old = await runtime.write(rules_searches.issue, confirmed, lifetime=timedelta(seconds=-1))
    response = await act(client, old.token, "retry", room=["lab"])
    assert "expired" in expect_problem(response, 422, "invalid-request")["detail"]
    unknown = await client.post(f"{BULK}/preview", json={"action": "retry", "filter": {"colour": "red"}})
    expect_problem(unknown, 422, "invalid-request")
    assert (await act(client, token, "retry", room=["lab"])).json()["affected"] == 1


async def test_users_retry_and_cancel_their_own_tasks(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Only in rooms that they name, and nothing else."""
    job = await register(client)
    ada, bob = await as_user("ada"), await as_user("bob")
    own, other = [(await submit(user, job))["id"] for user in (ada, bob)]
    expect_problem(await (await as_user()).post(f"{BULK}/preview", json={}), 401, "unauthorized")
    for action, wanted in (
        ("cancel", {}),
        ("purge", {"room": ["lab"]}),
        ("release", {"room": ["lab"]}),
        ("cancel", {"room": ["lab"], "created_by": "bob"}),
    ):
        for path, more in ((f"{BULK}/preview", {}), (BULK, {"token": "x"})):
            body = {"action": action, "filter": wanted, **more}
            expect_problem(await ada.post(path, json=body), 403, "forbidden")
    shown = await preview(ada, "cancel", room=["lab"])
    assert [(example["id"], example["worker_name"]) for example in shown["examples"]] == [(own, None)]
    assert (await act(ada, shown["token"], "cancel", room=["lab"])).json()["affected"] == 1
    assert await statuses(client, [own, other]) == ["cancelled", "pending"]
    expect_problem(await ada.get(f"{V1}/audit"), 403, "forbidden")
    assert await trail(ada, room="lab") == await trail(client) == []


async def test_operators_actions_are_recorded_and_logged(  # noqa: PLR0915 - one statement for each action
    client: httpx.AsyncClient, as_user: AsUser, caplog: pytest.LogCaptureFixture
) -> None:
    """One entry and one line each, with the request's id; not what users do with what is their own."""
    ada = await as_user("ada")
    job = await register(ada, room="lab")
    name, worker = job["full_name"], job["worker_id"]
    ids = [(await submit(ada, job))["id"] for _ in range(3)]
    caplog.set_level(logging.INFO, "zndraw_joblib")

    async def do(method: str, path: str, body: Any = None) -> None:
        given = {"X-Request-ID": "request-1", "Idempotency-Key": f'"{method} {path}"'}
        for _ in range(2):  # a repeat is not recorded
            response = await client.request(method, f"{V1}{path}", json=body, headers=given)
            assert response.status_code < 300, response.text

    for method, path, body in (
        ("POST", f"/rooms/lab/jobs/{name}/pause", None),
        ("POST", f"/rooms/lab/jobs/{name}/resume", None),
        ("PATCH", "/admin/sweeper", {"mode": "observe"}),
        ("POST", f"/tasks/{ids[0]}/fail", None),
        ("POST", f"/tasks/{ids[0]}/retry", None),
        ("PATCH", f"/tasks/{ids[1]}", {"status": "cancelled"}),
    ):
        await do(method, path, body)
    held = await claim(ada, worker)
    await do("POST", f"/tasks/{held['id']}/release")
    await ada.post(f"{V1}/workers/{worker}/drain")
    await do("POST", f"/workers/{worker}/drain")
    await do("DELETE", f"/workers/{worker}")
    assert (await ada.patch(f"{V1}/tasks/{ids[2]}", json={"status": "cancelled"})).status_code == 200
    expected = [
        *("worker.remove", "worker.drain", "task.release", "task.cancel", "task.retry", "task.fail"),
        *("sweeper.mode", "job.resume", "job.pause"),
    ]
    found = (await client.get(f"{V1}/audit")).json()["items"]
    assert [entry["action"] for entry in found] == expected
    assert {(entry["actor"], entry["request_id"]) for entry in found} == {("admin", "request-1")}
    lines = [record.getMessage() for record in caplog.records if "Operator action" in record.getMessage()]
    first = f"Operator action: action=job.pause actor=admin target={name}"
    assert (len(lines), lines[0]) == (len(expected), first)
    of_room = [action for action, _, _ in await trail(ada, room="lab")]
    assert of_room == [action for action in expected if action.startswith(("task", "job"))]


@on_both
async def test_the_audit_trail_has_pages(client: httpx.AsyncClient) -> None:
    """Each entry once, newest first."""
    name = (await register(client, room="lab"))["full_name"]
    expected = ["job.pause", "job.resume"] * 3
    for action in reversed(expected):
        url = f"{V1}/rooms/lab/jobs/{name}/{action.removeprefix('job.')}"
        assert (await client.post(url)).status_code == 200
    pages, cursor = [], None
    while True:
        query = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
        page = (await client.get(f"{V1}/audit", params=query)).json()
        pages += [entry["action"] for entry in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert pages == expected
    assert await trail(client, actor="ada") == []
    for wrong in ("x", "WzEsInRhc2tzIiwxXQ"):  # the second is a cursor of tasks
        expect_problem(await client.get(f"{V1}/audit", params={"cursor": wrong}), 422, "invalid-request")


@on_both
async def test_old_entries_are_deleted(replica: Replica) -> None:
    """Those beyond `audit_days`, however many there are."""
    table = metadata.tables["joblib_audit"]
    now = datetime.now(UTC)
    row = {"actor": "a", "action": "job.pause", "target": "x"}
    await replica.add(table, [row | {"at": at} for at in (LONG_AGO, now, now, now)])
    keep = timedelta(days=90)
    pruned, _ = await replica.runtime.write(rules_retention.prune, rules_retention.AUDIT, keep, None)
    assert pruned.deleted == (1 if now - LONG_AGO > keep else 0)
    trail = await replica.runtime.database.read(sql_lists.read, sql_lists.AUDIT, CursorPage(10, None), {})
    assert len(trail.items) == 3


OLD: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
OTHER: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 5}}}


@on_both
async def test_tasks_of_an_old_version_are_retargeted_or_cancelled(  # noqa: PLR0915 - one story
    client: httpx.AsyncClient,
) -> None:
    """Each payload is validated against the current schema; those that match keep id, place and priority."""
    job = await register(client, schema=OLD, max_attempts=2, retry_on=["error"])
    ids = []
    for x in (1, 9, 2):
        submitted = await submit(client, job, x=x)
        ids.append(submitted["id"])
        assert submitted["version"] == 1
    held = [await claim(client, job["worker_id"]) for _ in ids]
    assert (await register(client, schema=OTHER, worker_id=job["worker_id"]))["version"] == 2
    newer = await submit(client, job, x=3)
    for task_id in ids[1:]:
        assert (await client.post(f"{V1}/tasks/{task_id}/release")).status_code == 200
    # This one waits for its retry.
    assert held[0] is not None
    await report(client, held[0], "failed", attempt=held[0]["attempt"], error="again")
    wanted: dict[str, Any] = {"job": [job["full_name"]], "version": [1]}
    found = (await client.get(f"{V1}/tasks", params={"job": job["full_name"], "version": 1})).json()["items"]
    assert [(item["id"], item["version"]) for item in found] == [(task_id, 1) for task_id in ids[::-1]]
    shown = await preview(client, "retarget", **wanted)
    assert shown["count"] == 3
    result = (await act(client, shown["token"], "retarget", **wanted)).json()
    assert (result["affected"], result["skipped"]) == (2, 1)
    [refused] = result["refused"]
    assert refused["id"] == ids[1]
    assert "9" in refused["detail"]
    assert [(await client.get(f"{V1}/tasks/{task_id}")).json()["version"] for task_id in ids] == [2, 1, 2]
    assert "no_worker_of_version" in (await client.get(f"{V1}/tasks/{ids[1]}/explain")).text
    described = (await client.get(f"{V1}/rooms/lab/jobs/{job['full_name']}")).json()
    assert [(one["version"], one["workers"]) for one in described["versions"]] == [(2, 1), (1, 0)]
    shown = await preview(client, "cancel", **wanted)
    assert (await act(client, shown["token"], "cancel", **wanted)).json()["affected"] == 1
    actions = [action for action, _, _ in await trail(client)]
    assert actions[:3] == ["bulk.cancel", "bulk.retarget", "job.schema"]
    assert newer["version"] == 2


@on_both
async def test_versions_are_those_of_named_jobs(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """A filter of versions needs jobs, and so does a retarget. The error of an unknown version lists all."""
    job = await register(client, schema=OLD)
    await submit(client, job, x=1)
    await register(
        client, schema={**OLD, "required": []} | {"properties": {"x": {}}}, worker_id=job["worker_id"]
    )
    name = job["full_name"]
    for action, version, detail in (
        ("retarget", 7, f"version: there is no earlier version 7: {name} has 2 (current), 1"),
        ("retarget", 2, f"version: there is no earlier version 2: {name} has 2 (current), 1"),
        ("cancel", 7, f"version: there is no version 7: {name} has 2 (current), 1"),
    ):
        body = {"action": action, "filter": {"job": [name], "version": [version]}}
        response = await client.post(f"{BULK}/preview", json=body)
        assert detail in expect_problem(response, 422, "invalid-request")["detail"]
    unknown = {"action": "retarget", "filter": {"job": ["lab:modifiers:Nope"]}}
    response = await client.post(f"{BULK}/preview", json=unknown)
    assert "filter.job: there is no job" in expect_problem(response, 422, "invalid-request")["detail"]
    user = await as_user("user")
    body = {"action": "cancel", "filter": {"job": [name], "version": [7], "room": ["lab"]}}
    assert (await user.post(f"{BULK}/preview", json=body)).json()["count"] == 0
    without_job = await client.post(f"{BULK}/preview", json={"action": "retarget", "filter": {}})
    assert "filter.job" in expect_problem(without_job, 422, "invalid-request")["detail"]
    alone = await client.post(f"{BULK}/preview", json={"action": "cancel", "filter": {"version": [1]}})
    assert "version" in expect_problem(alone, 422, "invalid-request")["detail"]


@on_both
async def test_a_kill_between_two_batches_of_a_retarget_loses_nothing(replica: Replica) -> None:
    """Each task is in one version; a repeat moves the rest."""
    job = await replica.register(schema=OLD)
    await add_tasks(replica, [task(job.id, TaskStatus.PENDING, payload={"x": n % 10}) for n in range(60)])
    new = {"type": "object", "properties": {**OLD["properties"], "y": {"type": "integer"}}}
    assert (await replica.register(schema=new)).version == 2
    batches = 0

    async def write(work: Any, *args: Any) -> Any:
        nonlocal batches
        batches += work is rules_searches.apply_batch
        if batches > 2:
            raise Killed
        return await replica.runtime.write(work, *args)

    async def retarget(write: Any) -> Any:
        runtime, action = replica.runtime, BulkAction.RETARGET
        confirmed = Confirmed(ADMIN, action, TaskFilter(job=[job.full_name]), 0)
        limits = BulkLimits(batch=20)
        shown = await rules_searches.preview(runtime.database.read, runtime.write, confirmed, limits)
        checked = await runtime.database.read(rules_searches.verify, shown.token, confirmed)
        return await rules_searches.apply(
            runtime.database.read, write, checked, None, limits, runtime.payload_validator.fault
        )

    with pytest.raises(Killed):
        await retarget(write)
    done = await retarget(replica.runtime.write)
    assert (done.affected, done.skipped, done.refused) == (20, 0, [])
    rows = await replica.rows(metadata.tables["joblib_job"])
    assert sorted((row.job_version, row.pending) for row in rows) == [(1, 0), (2, 60)]
