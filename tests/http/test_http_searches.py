"""Searches across rooms: every filter, the pages, the budget, and who may search where."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from databases import on_both
from replica import OWNER, SUBMITTER, Replica
from rest import V1, AsUser, claim, expect_problem, register, report, submit
from seeds import LONG_AGO, add_tasks, task

from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.admin.sql_lists import encode_cursor
from zndraw_joblib.server.admin.sql_searches import Budget
from zndraw_joblib.server.process.ports import CursorPage
from zndraw_joblib.wire.operators import TaskFilter
from zndraw_joblib.wire.statuses import HELD, TaskStatus

ERRORS = ["ValueError: 100%_sure", "value~error", None]
PAYLOADS: list[dict[str, Any]] = [{"file": "a_b%c.xyz"}, {"file": "aXbYc"}, {"name": 'He said "HÉ"'}]


async def seed(replica: Replica) -> list[dict[str, Any]]:
    """Insert 180 tasks that differ in everything; return their rows, newest first, with their job's name."""
    jobs = [await replica.register(name) for name in ("Rotate", "Scale")]
    worker = jobs[0].worker_id
    rows = []
    for index in range(180):
        status = list(TaskStatus)[index % 6]
        is_held = status in HELD
        row = task(
            jobs[index % 2].id,
            status,
            room_id=f"room-{index % 5}",
            created_by=[SUBMITTER.id, "other"][index // 6 % 2],
            worker_id=worker if is_held or (index % 12 == 3) else None,
            worker_owner_id=OWNER.id if is_held else None,
            error=ERRORS[index % 3] if status is TaskStatus.FAILED or index % 7 == 0 else None,
            error_code="worker-lost" if index % 4 == 0 else "error",
            payload=PAYLOADS[index // 7 % 3],
            run_at=at(9_999_999) if status is TaskStatus.PENDING and index % 4 else None,
            created_at=LONG_AGO + timedelta(minutes=index // 2),
            completed_at=LONG_AGO + timedelta(minutes=index)
            if status in set(TaskStatus) - HELD - {"pending"}
            else None,
        )
        rows.append(row | {"job": jobs[index % 2].full_name})
    await add_tasks(replica, [{name: row[name] for name in row if name != "job"} for row in rows])
    return rows[::-1]


def lowered(text: str | None) -> str:
    """Return a text with the letters a to z in lower case."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in text or "")


def does_match(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether a row matches every field of a filter."""
    payload = json.dumps(row["payload"], separators=(",", ":"), ensure_ascii=False)
    exception = None if row["error"] is None else row["error"].partition(":")[0]
    found = {"room": row["room_id"], "worker": row["worker_id"], "exception": exception}
    found["scheduled"] = row["status"] == TaskStatus.PENDING and row["run_at"] is not None
    for name, value in wanted.items():
        if name == "text":
            is_same = any(lowered(value) in lowered(text) for text in (payload, row["error"]))
        elif name in {"since", "until"}:
            is_same = (row["created_at"] >= value) == (name == "since")
        else:
            own = found.get(name, row.get(name))
            is_same = own in value if isinstance(value, list) else own == value
        if not is_same:
            return False
    return True


def at(minutes: int) -> datetime:
    """Return a time among those of the tasks."""
    return LONG_AGO + timedelta(minutes=minutes)


async def everything(
    replica: Replica, limit: int, budget: Budget | None = None, *, oldest_first: bool = False, **wanted: Any
) -> list[UUID]:
    """Read a search to its end; return the ids that it found."""
    found: list[UUID] = []
    cursor = None
    while True:
        page, order = CursorPage(limit, cursor), {"oldest_first": oldest_first}
        part = await replica.runtime.database.read(
            rules_searches.find, TaskFilter(**wanted), page, budget, **order
        )
        assert len(part.items) <= limit
        found += [item.id for item in part.items]
        cursor = part.next
        if cursor is None:
            return found


@on_both
async def test_each_filter_alone_and_with_others(replica: Replica) -> None:
    """A search finds exactly the tasks that match all fields, in pages of any size, in both orders."""
    rows = await seed(replica)
    worker = next(row["worker_id"] for row in rows if row["worker_id"])
    job, other = rows[0]["job"], rows[1]["job"]
    texts = ["a_b%c", "A_B%C", "%", "_", "~", "VALUE", "\\", '\\"hé', "HÉ", 'e":"a', "100%_SURE", "nowhere"]
    cases: list[dict[str, Any]] = [
        {},
        *({"status": [status]} for status in TaskStatus),
        {"status": ["failed", "cancelled"]},
        {"status": ["pending", "running"]},
        {"status": ["failed", "pending"]},
        {"job": [job]},
        {"job": [job, other, "@global:modifiers:None"]},
        {"job": ["@global:modifiers:None"]},
        {"job": [job], "status": ["pending"]},
        {"room": ["room-1"]},
        {"room": ["room-1", "room-3", "none"]},
        {"room": ["room-1", "room-3"], "status": ["failed", "completed"]},
        {"room": ["room-2"], "job": [job], "status": ["pending", "failed"]},
        {"room": ["room-2"], "since": at(10), "until": at(50)},
        {"room": [f"room-{number}" for number in range(8)], "status": list(TaskStatus)},
        {"worker": worker},
        {"worker": worker, "status": ["running"]},
        {"created_by": "other"},
        {"scheduled": True},
        {"scheduled": False, "status": ["pending"], "room": ["room-1", "room-4"]},
        {"error_code": ["worker-lost"]},
        {"exception": ["ValueError", "value"]},
        {"exception": ["value~error", "none"]},
        {"since": at(30)},
        {"until": at(30)},
        {"since": at(20), "until": at(21), "created_by": "other"},
        *({"text": text} for text in texts),
        {"text": "value", "status": ["failed"], "room": ["room-0", "room-4"]},
    ]  # fmt: skip
    for number, wanted in enumerate(cases):
        expected = [row["id"] for row in rows if does_match(row, wanted)]
        limits = (7, 200) if number % 2 else (200, 7)
        assert await everything(replica, limits[0], **wanted) == expected, wanted
        assert await everything(replica, limits[1], oldest_first=True, **wanted) == expected[::-1], wanted


async def test_who_may_search_where(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Superusers search all rooms; others must name rooms. Literal paths come before ids."""
    job = await register(client)
    tasks = [await submit(client, job, room) for room in ("lab", "attic", "lab")]
    held = await claim(client, job["worker_id"])
    assert (await report(client, held, "failed", attempt=1, error="no")).status_code == 200
    ada = await as_user("ada")
    for url in (f"{V1}/tasks", f"{V1}/tasks/counts", f"{V1}/tasks/failures"):
        expect_problem(await (await as_user()).get(url), 401, "unauthorized")
        problem = expect_problem(await ada.get(url), 403, "forbidden")
        assert "room" in problem["detail"]
        expect_problem(await ada.get(url, params={"room": ["lab", "bad@room"]}), 400, "invalid-room-id")
        expect_problem(await client.get(url, params={"room": "a\x00"}), 422, "invalid-request")
    found = (await client.get(f"{V1}/tasks")).json()
    assert [item["id"] for item in found["items"]] == [task["id"] for task in reversed(tasks)]
    assert found["next"] is None
    assert "payload" not in found["items"][0]
    of_room = (await ada.get(f"{V1}/tasks", params={"room": "lab", "status": ["failed", "running"]})).json()
    assert [(item["id"], item["error"]) for item in of_room["items"]] == [(tasks[0]["id"], "no")]
    zeros = dict.fromkeys(TaskStatus, 0) | {"is_complete": True}
    assert (await client.get(f"{V1}/tasks/counts")).json() == zeros | {"pending": 2, "failed": 1}
    counts = await ada.get(f"{V1}/tasks/counts", params={"room": ["attic", "none"]})
    assert counts.json() == zeros | {"pending": 1}


@on_both
async def test_a_found_task_says_what_it_does_and_waits_for(client: httpx.AsyncClient) -> None:
    """The beginning of its payload, the name of its worker, its progress, what a pending one waits for."""
    job, unserved, paused = [
        await register(client, name, worker={"name": f"{name}-1"}) for name in ("Run", "Gone", "Idle")
    ]
    await submit(client, job, text="x" * 500)
    held = await claim(client, job["worker_id"])
    assert (await report(client, held, "running", attempt=1, progress={"current": 3, "total": 9})).is_success
    for other in (job, unserved, paused):
        await submit(client, other, "attic", steps=1)
    await submit(client, job, "den", steps=2)
    later = {"payload": {"steps": 3}, "delay_seconds": 600}
    assert (await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=later)).is_success
    assert (await client.delete(f"{V1}/workers/{unserved['worker_id']}")).is_success
    assert (await client.post(f"{V1}/rooms/@global/jobs/{paused['full_name']}/pause")).is_success
    assert (await client.post(f"{V1}/rooms/den/pause")).is_success
    items = (await client.get(f"{V1}/tasks")).json()["items"]
    assert [(item["payload_preview"], item["waits_for"]) for item in items[:-1]] == [
        ('{"steps":3}', "time"),
        ('{"steps":2}', "resume"),
        ('{"steps":1}', "resume"),
        ('{"steps":1}', "worker"),
        ('{"steps":1}', None),
    ]
    assert [items[-1][name] for name in ("worker_name", "waits_for")] == ["Run-1", None]
    assert (items[-1]["progress"]["current"], items[-1]["progress"]["total"]) == (3, 9)
    assert items[-1]["payload_preview"] == '{"text":"' + "x" * 191
    assert (items[0]["worker_name"], items[0]["progress"]) == (None, None)


async def test_only_superusers_read_the_names_of_workers(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """As those of others in the list of workers: a name often has the host."""
    job = await register(client, worker={"name": "gpu-7.internal"})
    await submit(client, job)
    held = await claim(client, job["worker_id"])
    for user, name in ((client, "gpu-7.internal"), (await as_user("bob"), None)):
        [item] = (await user.get(f"{V1}/tasks", params={"room": held["room_id"]})).json()["items"]
        assert (item["id"], item["worker_name"]) == (held["id"], name)


@on_both
async def test_failures_are_grouped(replica: Replica) -> None:
    """By job, error code and exception, the largest group first, with times, an example and the filter."""
    jobs = [await replica.register(name) for name in ("Rotate", "Scale")]
    errors = ["ValueError: 100%_sure", "value~error", None, "no.Name: x", "ValueError"]
    rows = [
        task(
            jobs[index % 2].id,
            TaskStatus.FAILED if index % 3 else TaskStatus.CANCELLED,
            room_id=f"room-{index % 5}",
            error=errors[index % len(errors)],
            error_code=["error", "worker-lost"][index // 7 % 2],
            completed_at=at(index),
        )
        | {"job": jobs[index % 2].full_name}
        for index in range(60)
    ]
    await add_tasks(replica, [{name: row[name] for name in row if name != "job"} for row in rows])
    rows = [row for row in reversed(rows) if row["status"] == "failed"]
    groups = await replica.runtime.database.read(rules_searches.group_failures, TaskFilter())
    assert (groups.count, groups.is_complete) == (len(rows), True)
    assert sum(group.count for group in groups.groups) == len(rows)
    sizes = [group.count for group in groups.groups]
    assert sizes == sorted(sizes, reverse=True)
    for group in groups.groups:
        kinds = {"ValueError": {errors[0], errors[4]}, "no.Name": {errors[3]}, None: {errors[1], None}}
        same = [row for row in rows if (row["job"], row["error_code"]) == (group.job_name, group.error_code)]
        same = [row for row in same if row["error"] in kinds[group.exception]]
        assert (group.count, group.example) == (len(same), same[0]["id"])
        assert (group.first_at, group.last_at) == (same[-1]["completed_at"], same[0]["completed_at"])
    part = await replica.runtime.database.read(
        rules_searches.group_failures, TaskFilter(exception=["ValueError"], room=["room-0"]), 1
    )
    assert [(group.exception, group.count) for group in part.groups] == [("ValueError", 1)]
    assert not part.is_complete


async def test_wrong_parameters_are_problems(client: httpx.AsyncClient) -> None:
    """Each names its parameter. A cursor of another list, or of a search without rooms, is refused."""
    job = await register(client)
    for _ in range(3):
        await submit(client, job)
    pages = [
        (await client.get(f"{V1}/tasks", params={"limit": 1, **room})).json()
        for room in ({}, {"room": "lab"})
    ]
    for page in pages:
        assert len(page["items"]) == 1
    of_all, of_room = [page["next"] for page in pages]
    wrong = ["", "x", "W10", "e30", "WzEsLTFd", "bnVsbA", of_room, "A" * 5000, "é", of_all[:-2]]
    for name, values in {
        "limit": ["0", "201", "-1", "x", "", "1.5", "9" * 400],
        "cursor": wrong,
        "status": ["done", ""],
        "oldest_first": ["maybe"],
        "worker": ["x"],
        "since": ["yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00%2B01:00"],
        "text": ["", "x" * 201, "\x00"],
        "error_code": ["", "x" * 401],
        "created_by": ["\x00"],
        "job": [["x"] * 21],
    }.items():
        for value in values:
            response = await client.get(f"{V1}/tasks", params={name: value})
            assert f"query.{name}" in expect_problem(response, 422, "invalid-request")["detail"], value
    for other in ({"room": "lab"}, {"oldest_first": True}):
        mixed = await client.get(f"{V1}/tasks", params={"cursor": of_all, **other})
        expect_problem(mixed, 422, "invalid-request")
    huge = encode_cursor("tasks of rooms", 2**62, 2**62)
    expect_problem(
        await client.get(f"{V1}/tasks", params={"room": "lab", "cursor": huge}), 422, "invalid-request"
    )
    assert (await client.get(f"{V1}/tasks", params={"limit": 200})).status_code == 200


@on_both
async def test_every_task_is_found_once_while_tasks_are_added_and_change(replica: Replica) -> None:
    """Pages begin where the last one ended, whatever is added, moved or deleted meanwhile."""
    job = await replica.register()
    first = [(await replica.submit(job, room=f"room-{index % 2}")).id for index in range(20)]
    for wanted in ({}, {"room": ["room-0", "room-1"]}, {"status": ["pending", "running"]}):
        found, cursor = [], None
        while True:
            read = replica.runtime.database.read
            part = await read(rules_searches.find, TaskFilter(**wanted), CursorPage(3, cursor))
            found += [item.id for item in part.items]
            await replica.submit(job)
            if (cursor := part.next) is None:
                break
        assert [task_id for task_id in found if task_id in set(first)] == first[::-1]
        assert len(found) == len(set(found))


@on_both
async def test_a_search_for_few_among_many_ends_early_and_reads_on(replica: Replica) -> None:
    """With a budget of one window, a part may be empty; the last part has no `next`."""
    job = await replica.register()
    rows = [task(job.id, payload={"n": number}) for number in range(400)]
    await add_tasks(replica, rows)
    wanted, budget = TaskFilter(text='"n":7}'), Budget(rows=1)
    part = await replica.runtime.database.read(rules_searches.find, wanted, CursorPage(5, None), budget)
    assert (part.items, part.next is None) == ([], False)
    assert await everything(replica, 5, budget, text='"n":7}') == [rows[7]["id"]]
    assert await everything(replica, 5, Budget(seconds=0), text='"n":7}', room=["lab"]) == [rows[7]["id"]]
    newest, of_ten = TaskFilter(text='"n":39'), Budget(rows=1, seconds=0)
    part = await replica.runtime.database.read(rules_searches.find, newest, CursorPage(10, None), of_ten)
    assert [found.id for found in part.items] == [row["id"] for row in rows[:389:-1]]  # 16 rows at least
    assert await everything(replica, 200, budget) == [row["id"] for row in reversed(rows)]
    first, last = datetime.min.replace(tzinfo=UTC), datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert len(await everything(replica, 200, since=first, until=last)) == 400
    since, until = at(1), at(2)
    assert await everything(replica, 5, budget, since=since) == []
    assert await everything(replica, 5, budget, until=since, text='"n":7}') == [rows[7]["id"]]
    assert await everything(replica, 5, budget, until=until - timedelta(days=1)) == []


@on_both
async def test_ids_are_found_by_their_first_characters(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Users find tasks of rooms that they may read, and their own workers."""
    ada, bob = await as_user("ada"), await as_user("bob")
    job = await register(ada, room="lab")
    url, worker = f"{V1}/ids", job["worker_id"]
    task_id = (await submit(ada, job))["id"]
    for size in (18, 24, 36):
        assert task_id in (await client.get(url, params={"prefix": task_id[:size]})).json()["tasks"]
    found = (await client.get(url, params={"prefix": worker[:8].upper()})).json()
    assert found == {"tasks": [], "workers": [worker], "groups": []}
    group = (await client.post(f"{V1}/groups", json={"room": "lab"})).json()["id"]
    for params, groups in (({}, [group]), ({"room": "lab"}, [group]), ({"room": "attic"}, [])):
        found = (await client.get(url, params={"prefix": group, **params})).json()
        assert found["groups"] == groups
    for user, room, tasks, workers in ((ada, "lab", 1, 1), (bob, "lab", 1, 0), (ada, "attic", 0, 1)):
        responses = [await user.get(url, params={"prefix": each, "room": room}) for each in (task_id, worker)]
        counts = (len(responses[0].json()["tasks"]), len(responses[1].json()["workers"]))
        assert counts == (tasks, workers)
    expect_problem(await bob.get(url, params={"prefix": worker}), 403, "forbidden")
    for wrong in ("", "abc", "xyzw", "a" * 37, "\x00" * 8):
        expect_problem(await client.get(url, params={"prefix": wrong}), 422, "invalid-request")
