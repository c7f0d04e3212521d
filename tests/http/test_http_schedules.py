"""Schedules over HTTP: write, list, read, pause, run, delete; and the tasks that they submit."""

from typing import Any

import httpx
import pytest
from databases import on_both
from rest import V1, AsUser, claim, expect_problem, parse_utc, register, report
from waiting import until

URL = f"{V1}/rooms/lab/schedules"


async def put(
    client: httpx.AsyncClient, job: dict[str, Any], name: str = "nightly", **fields: Any
) -> httpx.Response:
    """Create or replace a schedule, by default one that is due each day at 3 in Berlin."""
    times = {"cron": "0 3 * * *", "time_zone": "Europe/Berlin"} if not fields else {}
    return await client.put(f"{URL}/{name}", json={"job": job["full_name"], **times, **fields})


@on_both
async def test_a_schedule_from_its_creation_to_its_deletion(client: httpx.AsyncClient) -> None:
    """201, then 200; all fields; five due times; a list by name; paused and resumed; 204, then 404."""
    job = await register(client)
    response = await put(client, job)
    assert response.status_code == 201, response.text
    schedule = response.json()
    assert (schedule["name"], schedule["room_id"], schedule["job"]) == ("nightly", "lab", job["full_name"])
    assert (schedule["cron"], schedule["time_zone"]) == ("0 3 * * *", "Europe/Berlin")
    assert (schedule["overlap"], schedule["catch_up"], schedule["max_catch_up"]) == ("allow", "last", 100)
    assert schedule["paused"] is False
    assert "next" not in schedule
    again = await put(client, job)
    assert again.status_code == 200
    assert again.json() == {**schedule, "updated_at": again.json()["updated_at"]}
    read = (await client.get(f"{URL}/nightly", params={"next": 5})).json()
    due = [parse_utc(text) for text in read.pop("next")]
    assert read == again.json()
    assert due == sorted(due)
    assert (due[0], len(due)) == (parse_utc(schedule["next_due_at"]), 5)
    assert (await put(client, job, "hourly", every_seconds=3600)).status_code == 201
    page = (await client.get(URL)).json()
    assert [item["name"] for item in page["items"]] == ["hourly", "nightly"]
    assert page["total"] == 2
    assert (await client.get(f"{V1}/rooms/attic/schedules")).json()["items"] == []
    for query, items in (({}, page["items"]), ({"room": "attic"}, [])):
        assert (await client.get(f"{V1}/schedules", params=query)).json() == {"items": items, "next": None}


async def test_changes_of_a_schedule(client: httpx.AsyncClient) -> None:
    """It is put, paused and resumed, which the audit trail has, and deleted; then each request gets a 404."""
    await put(client, await register(client))
    for paused in (True, False):
        response = await client.patch(f"{URL}/nightly", json={"paused": paused})
        assert (response.status_code, response.json()["paused"]) == (200, paused)
    actions = [entry["action"] for entry in (await client.get(f"{V1}/audit")).json()["items"]]
    assert actions == ["schedule.resume", "schedule.pause", "schedule.put"]
    assert (await client.delete(f"{URL}/nightly")).status_code == 204
    expect_problem(await client.delete(f"{URL}/nightly"), 404, "schedule-not-found")
    expect_problem(await client.get(f"{URL}/nightly"), 404, "schedule-not-found")
    expect_problem(await client.patch(f"{URL}/nightly", json={"paused": True}), 404, "schedule-not-found")
    expect_problem(await client.post(f"{URL}/nightly/run"), 404, "schedule-not-found")


@on_both
async def test_a_server_submits_what_is_due(client: httpx.AsyncClient) -> None:
    """A new schedule wakes the loop of the server; the task knows its schedule, also when it has ended."""
    job = await register(client)
    schedule = (await put(client, job, "soon", every_seconds=1, payload={"n": 1})).json()

    async def tasks() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
        return items

    await until(tasks)
    await client.patch(f"{URL}/soon", json={"paused": True})
    first = (await tasks())[-1]
    assert (first["schedule"], first["due_at"]) == ("soon", schedule["next_due_at"])
    assert first["payload"] == {"n": 1}
    task = await claim(client, job["worker_id"])
    assert task is not None
    assert (task["id"], task["schedule"], task["due_at"]) == (first["id"], "soon", first["due_at"])
    for status in ("running", "completed"):
        reported = await report(client, task, status)
        assert reported.json()["due_at"] == first["due_at"]
    assert (await client.get(f"{V1}/tasks/{first['id']}")).json()["schedule"] == "soon"
    last = (await client.get(f"{URL}/soon")).json()
    assert last["last_task_id"] == (await tasks())[0]["id"]


async def test_a_schedule_is_run_by_hand(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Its task is the caller's and has no due time; with the same key it is submitted once."""
    job = await register(client, schema={"type": "object"})
    await put(client, job, cron="0 3 * * *", payload={"k": 1}, priority=5, paused=True)
    other = await as_user("other")
    answers = [
        await other.post(f"{URL}/nightly/run", headers={"Idempotency-Key": '"again"'}) for _ in range(2)
    ]
    first, second = (answer.json() for answer in answers)
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].headers["Location"].endswith(f"/tasks/{first['id']}")
    assert first["id"] == second["id"]
    assert (first["schedule"], first["payload"], first["priority"]) == ("nightly", {"k": 1}, 5)
    assert (first["created_by"], "due_at" in first) == ("other", False)


@on_both
async def test_due_times_whose_key_a_task_holds_make_no_other_task(client: httpx.AsyncClient) -> None:
    """Several due times, a run by hand and a submit share the one task, until it ends."""
    job = await register(client)
    times = {"every_seconds": 1, "unique": {"key": "sync"}, "payload": {"k": 1}}
    schedule = (await put(client, job, "often", **times)).json()
    assert schedule["unique"] == {"key": "sync", "scope": "room"}
    # What a response has is a valid request.
    assert (await put(client, job, "often", **{**times, "unique": schedule["unique"]})).status_code == 200

    async def shown() -> dict[str, Any]:
        read: dict[str, Any] = (await client.get(f"{URL}/often")).json()
        return read

    async def has_run_three_times() -> bool:
        first = parse_utc(schedule["next_due_at"])
        last = (await shown())["last_due_at"]
        return last is not None and (parse_utc(last) - first).total_seconds() >= 2

    await until(has_run_three_times)
    [task] = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
    assert ((await shown())["last_task_id"], (await shown())["error"]) == (task["id"], None)
    run = await client.post(f"{URL}/often/run")
    assert (run.status_code, run.json()["id"], run.json()["duplicate"]) == (200, task["id"], True)
    body = {"payload": {"k": 2}, "unique": {"key": "sync", "on_conflict": "reject"}}
    submit = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=body)
    assert expect_problem(submit, 409, "duplicate-task")["task_id"] == task["id"]
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    for status in ("running", "completed"):
        await report(client, claimed, status)

    async def has_another_task() -> bool:
        return bool((await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 2)

    await until(has_another_task)


async def test_a_schedule_whose_key_is_rejected_or_replaced(client: httpx.AsyncClient) -> None:
    """With `reject` the schedule has the problem; with `debounce` its payload replaces that of the task."""
    job = await register(client)
    submit = {"payload": {"k": 1}, "unique": {"key": "sync"}}
    task = (await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=submit)).json()
    moment = "2020-01-01T00:00:00Z"
    reject = {"unique": {"key": "sync", "on_conflict": "reject"}}
    await put(client, job, "rejected", at=moment, **reject)

    async def error() -> str:
        return str((await client.get(f"{URL}/rejected")).json()["error"])

    async def has_an_error() -> bool:
        return "duplicate-task" in await error()

    await until(has_an_error)
    assert task["id"] in await error()
    later = {"unique": {"key": "sync"}, "debounce": {"seconds": 600}, "payload": {"k": 2}}
    await put(client, job, "later", at=moment, **later)

    async def is_replaced() -> bool:
        read = (await client.get(f"{V1}/tasks/{task['id']}")).json()
        return read["payload"] == {"k": 2} and read["run_at"] is not None

    await until(is_replaced)
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1


@pytest.mark.parametrize("debounce", [None, {"seconds": 60}])
async def test_what_a_schedule_shows_may_be_put_again(client: httpx.AsyncClient, debounce: Any) -> None:
    """A form sends the fields that did not change as it has read them."""
    job = await register(client)
    options = {"unique": {"key": "sync"}, "debounce": debounce}
    assert (await put(client, job, every_seconds=3600, **options)).is_success
    [read] = (await client.get(URL)).json()["items"]
    options = {name: read[name] for name in ("unique", "debounce", "payload")}
    again = await put(client, job, every_seconds=7200, **options)
    assert again.is_success, again.text


async def test_a_payload_without_a_key_is_no_schedule(client: httpx.AsyncClient) -> None:
    """Its unique key is computed when it is written; a key of another room is not shown by a run."""
    job = await register(client)
    problem = await put(client, job, every_seconds=5, unique={}, payload={"k": 2**60})
    assert "unique.key" in expect_problem(problem, 422, "invalid-request")["detail"]
    assert (await put(client, job, every_seconds=5, unique={}, payload={"k": 1}, paused=True)).is_success
    tasks = [(await client.post(f"{URL}/nightly/run")).json()["id"] for _ in range(2)]
    assert tasks[0] == tasks[1]


async def test_a_registration_writes_the_schedule_of_its_job(client: httpx.AsyncClient) -> None:
    """It has the job's name, belongs to the job's room, and outlives the worker; another one replaces it."""
    body = {"category": "modifiers", "name": "Clean", "schedule": {"cron": "0 3 * * *", "payload": {"k": 1}}}
    job = (await client.put(f"{V1}/rooms/lab/jobs", json=body)).json()
    schedule = (await client.get(f"{URL}/Clean")).json()
    assert (schedule["job"], schedule["cron"], schedule["payload"]) == (
        job["full_name"],
        "0 3 * * *",
        {"k": 1},
    )
    await client.patch(f"{URL}/Clean", json={"paused": True})
    body["schedule"] = {"every_seconds": 60}
    assert (await client.put(f"{V1}/rooms/lab/jobs", json=body)).status_code == 200
    schedule = (await client.get(f"{URL}/Clean")).json()
    assert (schedule["cron"], schedule["every_seconds"], schedule["paused"]) == (None, 60, True)
    workers = (await client.get(f"{V1}/workers")).json()["items"]
    for worker in workers:
        await client.delete(f"{V1}/workers/{worker['id']}")
    assert (await client.get(f"{URL}/Clean")).status_code == 200
    body["schedule"] = {"cron": "never"}
    problem = expect_problem(await client.put(f"{V1}/rooms/lab/jobs", json=body), 422, "invalid-request")
    assert "cron: 'never' is no cron expression" in problem["detail"]


async def test_a_registration_replaces_no_schedule_of_another_job(client: httpx.AsyncClient) -> None:
    """Jobs of two categories may have one name; the second one with a schedule is refused."""
    body = {"category": "modifiers", "name": "Clean", "schedule": {"cron": "0 3 * * *"}}
    job = (await client.put(f"{V1}/rooms/lab/jobs", json=body)).json()
    body["category"] = "selections"
    problem = expect_problem(await client.put(f"{V1}/rooms/lab/jobs", json=body), 409, "conflict")
    assert job["full_name"] in problem["detail"]
    assert (await client.get(f"{URL}/Clean")).json()["job"] == job["full_name"]
    assert (await client.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 1


async def test_schedules_of_reserved_rooms_are_the_operators(
    client: httpx.AsyncClient, as_user: AsUser, subtests: pytest.Subtests
) -> None:
    """As their jobs are; others may read and run them."""
    schedule = {"cron": "0 3 * * *"}
    body = {"category": "modifiers", "name": "Clean", "schedule": schedule}
    job = (await client.put(f"{V1}/rooms/@global/jobs", json=body)).json()
    url = f"{V1}/rooms/@global/schedules/Clean"
    other = await as_user("other")
    changes: list[tuple[str, Any]] = [
        ("PUT", {"job": job["full_name"], **schedule}),
        ("PATCH", {"paused": True}),
        ("DELETE", None),
    ]
    for method, change in changes:
        with subtests.test(method):
            response = await other.request(method, url, json=change)
            assert "only superusers" in expect_problem(response, 403, "forbidden")["detail"]
    assert (await other.get(url)).json()["paused"] is False
    assert (await other.post(f"{url}/run")).json()["created_by"] == "other"


WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 422, "invalid-request", "give one of cron, every_seconds and at, not none"),
    ({"cron": "0 3 * * *", "every_seconds": 5}, 422, "invalid-request", "not cron and every_seconds"),
    ({"cron": "0 3 * *"}, 422, "invalid-request", "cron: '0 3 * *' is no cron expression: Wrong number"),
    ({"cron": "0 0 30 2 *"}, 422, "invalid-request", "cron: "),
    ({"cron": "0 3 * * *", "time_zone": "Mars"}, 422, "invalid-request", "time_zone: 'Mars'"),
    ({"cron": "0 3 * * *", "timezone": "Europe/Berlin"}, 422, "invalid-request", "timezone"),
    ({"every_seconds": 0.5}, 422, "invalid-request", "every_seconds"),
    ({"at": "2030-01-01T00:00:00"}, 422, "invalid-request", "at"),
    ({"every_seconds": 5, "overlap": "maybe"}, 422, "invalid-request", "overlap"),
    ({"every_seconds": 5, "max_catch_up": 1001}, 422, "invalid-request", "max_catch_up"),
    (
        {"every_seconds": 5, "starts_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"},
        *(422, "invalid-request", "ends_at is before starts_at"),
    ),
    ({"every_seconds": 5, "debounce": {"seconds": 5}}, 422, "invalid-request", "it needs unique"),
    (
        {"every_seconds": 5, "unique": {}, "debounce": {"seconds": 5}, "jitter_seconds": 5},
        *(422, "invalid-request", "remove jitter_seconds"),
    ),
    ({"every_seconds": 5, "unique": {"keys": "a"}}, 422, "invalid-request", "unique.keys"),
    ({"every_seconds": 5, "payload": {"k": "text"}}, 422, "invalid-payload", "payload/k"),
    ({"every_seconds": 5, "job": "lab:modifiers:Other"}, 404, "job-not-found", "lab:modifiers:Other"),
    ({"every_seconds": 5, "job": "no name"}, 404, "job-not-found", "no name"),
    ({"every_seconds": 5, "job": "attic:modifiers:Rotate"}, 404, "job-not-found", "attic"),
]


async def test_a_wrong_schedule_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """The problem names the field, and nothing is written."""
    schema = {"type": "object", "properties": {"k": {"type": "integer"}}}
    job = await register(client, schema=schema)
    await register(client, room="attic", schema=schema)
    for fields, status, kind, text in WRONG:
        with subtests.test(str(fields)):
            body = {"job": job["full_name"], **fields}
            problem = expect_problem(await client.put(f"{URL}/wrong", json=body), status, kind)
            assert text in str(problem)
    bad_name = await client.put(f"{URL}/-wrong", json={"job": job["full_name"], "every_seconds": 5})
    assert "schedule" in expect_problem(bad_name, 422, "invalid-request")["detail"]
    assert (await client.get(URL)).json()["items"] == []


async def test_limits(
    client: httpx.AsyncClient, app: Any, as_user: AsUser, subtests: pytest.Subtests
) -> None:
    """A room has at most `max_schedules_per_room`; a user has a share of `max_schedules`."""
    job = await register(client)
    settings = app.state.joblib.settings
    app.state.joblib.runtime.stored.schedules.pauses = 0, 0
    settings.max_schedules_per_room = 1
    assert (await put(client, job)).status_code == 201
    assert (
        "max_schedules_per_room" in expect_problem(await put(client, job, "two"), 409, "conflict")["detail"]
    )
    settings.max_schedules_per_room, settings.max_schedules = 100, 6
    other = await as_user("other")
    answers = [await put(other, job, f"n{number}") for number in range(6)]
    assert [answer.status_code for answer in answers] == [201] * 3 + [429] * 3
    assert "max_schedules" in expect_problem(answers[-1], 429, "too-many-requests")["detail"]
    assert (await put(other, job, "n0", every_seconds=9)).status_code == 200
