"""Workers over HTTP: creation, heartbeats, removal and lists."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from databases import on_both
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, parse_utc, register, report, submit

from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission, JobsInvalidate, TaskStatusEvent

WORKERS = f"{V1}/workers"


async def test_a_new_worker_gets_an_id_and_an_interval(
    client: httpx.AsyncClient, settings: ServerSettings, events: list[Emission]
) -> None:
    """201 with the current time and the heartbeat interval; no event is published."""
    response = await client.post(WORKERS)
    assert response.status_code == 201
    worker = response.json()
    assert abs(parse_utc(worker["last_heartbeat"]) - datetime.now(UTC)) < timedelta(seconds=10)
    assert worker["heartbeat_interval_seconds"] == settings.worker_timeout_seconds / 4 == 15
    assert events == []


@on_both
async def test_every_worker_is_listed_newest_first(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Workers of all users, also without jobs; `job_count` counts the jobs of each."""
    ada = await as_user("ada")
    idle = (await client.post(WORKERS)).json()
    busy = (await ada.post(WORKERS)).json()
    for name in ("Rotate", "Scale"):
        await register(ada, name, room="lab", worker_id=busy["id"])
    page = (await ada.get(WORKERS)).json()
    assert [(w["id"], w["job_count"]) for w in page["items"]] == [(busy["id"], 2), (idle["id"], 0)]
    assert (page["total"], page["limit"], page["offset"]) == (2, 50, 0)
    assert {parse_utc(w["last_heartbeat"]).tzinfo for w in page["items"]}


async def test_a_heartbeat_is_later_than_the_one_before(client: httpx.AsyncClient) -> None:
    """200 with a strictly later time and the interval."""
    worker = (await client.post(WORKERS)).json()
    seen = [parse_utc(worker["last_heartbeat"])]
    for _ in range(3):
        response = await client.patch(f"{WORKERS}/{worker['id']}")
        assert response.status_code == 200
        assert response.json()["id"] == worker["id"]
        assert response.json()["heartbeat_interval_seconds"] == worker["heartbeat_interval_seconds"]
        seen.append(parse_utc(response.json()["last_heartbeat"]))
    assert seen == sorted(set(seen))
    [listed] = (await client.get(WORKERS)).json()["items"]
    assert parse_utc(listed["last_heartbeat"]) == seen[-1]


async def test_only_the_owner_sends_heartbeats(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """403 for other users and superusers, 404 for an unknown worker, 422 for an invalid id."""
    ada, eve = await as_user("ada"), await as_user("eve")
    worker = (await ada.post(WORKERS)).json()
    for other in (eve, client):
        expect_problem(await other.patch(f"{WORKERS}/{worker['id']}"), 403, "forbidden")
    expect_problem(await ada.patch(f"{WORKERS}/{UNKNOWN_ID}"), 404, "worker-not-found")
    expect_problem(await ada.patch(f"{WORKERS}/x"), 422, "invalid-request")
    assert (await ada.patch(f"{WORKERS}/{worker['id']}")).status_code == 200


@pytest.mark.parametrize("kind", ["heartbeat", "claim", "provider request"])
async def test_a_refused_request_is_no_sign_of_life(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime, kind: str
) -> None:
    """The next report of the worker itself still counts as its heartbeat."""
    ada, eve = await as_user("ada"), await as_user("eve")
    job = await register(ada, room="lab")
    task = await submit(ada, job)
    worker_id = job["worker_id"]
    assert await claim(ada, worker_id) is not None
    runtime.force_heartbeat(UUID(worker_id))
    before = (await ada.get(f"{WORKERS}/{worker_id}")).json()["last_heartbeat"]
    body = {"worker_id": worker_id}
    refused = {
        "heartbeat": lambda: eve.patch(f"{WORKERS}/{worker_id}"),
        "claim": lambda: eve.post(f"{V1}/tasks/claim", json=body),
        "provider request": lambda: eve.post(f"{V1}/providers/requests/claim", json=body),
    }
    expect_problem(await refused[kind](), 403, "forbidden")
    assert (await report(ada, task, "running", worker_id=worker_id)).status_code == 200
    after = (await ada.get(f"{WORKERS}/{worker_id}")).json()["last_heartbeat"]
    assert parse_utc(after) > parse_utc(before)


async def test_a_heartbeat_returns_a_verdict_for_each_named_task(client: httpx.AsyncClient) -> None:
    """`continue` for a held, `cancel` for a cancelled and `lost` for any other task."""
    job = await register(client)
    for _ in range(4):
        await submit(client, job)
    held, running, cancelled, done = [await claim(client, job["worker_id"]) for _ in range(4)]
    await report(client, running, "running")
    await report(client, cancelled, "cancelled")
    await report(client, done, "running")
    await report(client, done, "completed")
    named = [{"id": task["id"], "attempt": task["attempt"]} for task in (held, running, cancelled, done)]
    named += [{"id": held["id"], "attempt": 2}, {"id": UNKNOWN_ID, "attempt": 1}]
    response = await client.patch(f"{WORKERS}/{job['worker_id']}", json={"tasks": named})
    assert response.status_code == 200
    verdicts = ["continue", "continue", "cancel", "lost", "lost", "lost"]
    expected = [{"id": task["id"], "verdict": verdict} for task, verdict in zip(named, verdicts, strict=True)]
    assert response.json()["tasks"] == expected


async def test_a_heartbeat_without_tasks(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """The body may be missing or empty, with any content type."""
    for body in ("", "{}", "null", '{"tasks": []}', '{"drain": 1}'):
        with subtests.test(body=body):
            worker = (await client.post(WORKERS)).json()
            response = await client.patch(f"{WORKERS}/{worker['id']}", content=body)
            assert (response.status_code, response.json()["tasks"]) == (200, [])


async def test_a_heartbeat_names_at_most_a_thousand_tasks(client: httpx.AsyncClient) -> None:
    """422 for more and for invalid ids; only the owner gets verdicts."""
    worker = (await client.post(WORKERS)).json()
    url = f"{WORKERS}/{worker['id']}"
    named = [{"id": f"00000000-0000-4000-8000-{number:012}", "attempt": 1} for number in range(1001)]
    response = await client.patch(url, json={"tasks": named[:1000]})
    assert [verdict["verdict"] for verdict in response.json()["tasks"]] == ["lost"] * 1000
    for tasks in (named, [{"id": "x", "attempt": 1}], [{"id": UNKNOWN_ID}], None, {}):
        expect_problem(await client.patch(url, json={"tasks": tasks}), 422, "invalid-request")
    expect_problem(await client.patch(url, content="{"), 422, "invalid-request")


async def test_its_owner_or_a_superuser_removes_a_worker(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """204 without a body; 403 for other users, 404 for an unknown worker, 422 for an invalid id."""
    ada, eve = await as_user("ada"), await as_user("eve")
    first, second = [(await ada.post(WORKERS)).json()["id"] for _ in range(2)]
    expect_problem(await eve.delete(f"{WORKERS}/{first}"), 403, "forbidden")
    for remover, worker_id in ((ada, first), (client, second)):
        response = await remover.delete(f"{WORKERS}/{worker_id}")
        assert (response.status_code, response.content) == (204, b"")
        expect_problem(await remover.delete(f"{WORKERS}/{worker_id}"), 404, "worker-not-found")
    expect_problem(await ada.delete(f"{WORKERS}/x"), 422, "invalid-request")
    assert (await client.get(WORKERS)).json()["total"] == 0


async def test_removing_a_worker_fails_its_tasks(client: httpx.AsyncClient) -> None:
    """Claimed and running tasks fail with the contract's text and keep their worker; pending tasks stay."""
    job = await register(client)
    tasks = [await submit(client, job) for _ in range(3)]
    held = [await claim(client, job["worker_id"]) for _ in range(2)]
    await report(client, held[1], "running")
    await client.delete(f"{WORKERS}/{job['worker_id']}")
    for task in held:
        after = await get_task(client, task)
        assert (after["status"], after["error"]) == ("failed", "Worker disconnected")
        assert after["worker_id"] == job["worker_id"]
        assert parse_utc(after["completed_at"]) >= parse_utc(after["created_at"])
    assert (await get_task(client, tasks[2]))["status"] == "pending"


async def test_removing_a_worker_publishes_events(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """One event per failed task and one per room of its jobs, none twice."""
    job = await register(client)
    for name, room in (("Scale", "@global"), ("Rotate", "lab")):
        await register(client, name, room=room, worker_id=job["worker_id"])
    await register(client)
    await submit(client, job, room="lab")
    await submit(client, job, room="lab")
    task = await claim(client, job["worker_id"])
    events.clear()
    await client.delete(f"{WORKERS}/{job['worker_id']}")
    assert len(events) == len(set(events)) == 3
    failed, *rest = events
    assert failed.room == "room:lab"
    assert isinstance(failed.event, TaskStatusEvent)
    assert (str(failed.event.id), failed.event.status) == (task["id"], "failed")
    assert (str(failed.event.worker_id), failed.event.error) == (job["worker_id"], "Worker disconnected")
    assert set(rest) == {(JobsInvalidate(), "room:@global"), (JobsInvalidate(), "room:lab")}


async def test_removing_the_last_worker_deletes_a_job_without_tasks(client: httpx.AsyncClient) -> None:
    """A job with a pending task stays."""
    orphan = await register(client, "Orphan")
    awaited = await register(client, "Awaited", worker_id=orphan["worker_id"])
    shared = await register(client, "Shared", worker_id=orphan["worker_id"])
    await register(client, "Shared")
    await submit(client, awaited)
    await client.delete(f"{WORKERS}/{orphan['worker_id']}")
    jobs = f"{V1}/rooms/lab/jobs"
    expect_problem(await client.get(f"{jobs}/{orphan['full_name']}"), 404, "job-not-found")
    for job, workers in ((awaited, 0), (shared, 1)):
        response = await client.get(f"{jobs}/{job['full_name']}")
        assert (response.status_code, len(response.json()["workers"])) == (200, workers)


@on_both
async def test_a_room_lists_the_workers_of_the_jobs_it_sees(client: httpx.AsyncClient) -> None:
    """Each worker of a job of the room or of a reserved room once; `job_count` counts all its jobs."""
    everywhere = await register(client)
    here = await register(client, "Here", room="lab")
    await register(client, "Too", room="lab", worker_id=here["worker_id"])
    await register(client, "Elsewhere", room="attic", worker_id=here["worker_id"])
    elsewhere = await register(client, "Elsewhere", room="attic")
    await client.post(WORKERS)
    seen = {}
    for room in ("lab", "attic", "@global"):
        page = (await client.get(f"{V1}/rooms/{room}/workers")).json()
        assert page["total"] == len(page["items"])
        seen[room] = [(w["id"], w["job_count"]) for w in page["items"]]
    globally, both, attic = (
        (everywhere["worker_id"], 1),
        (here["worker_id"], 3),
        (elsewhere["worker_id"], 1),
    )
    assert seen == {"lab": [both, globally], "attic": [attic, both, globally], "@global": [globally]}
    expect_problem(await client.get(f"{V1}/rooms/a:b/workers"), 400, "invalid-room-id")


@pytest.mark.parametrize("spelled", [str, lambda name: quote(name, safe="")], ids=["raw", "percent"])
async def test_a_worker_leaves_one_job(client: httpx.AsyncClient, spelled: object) -> None:
    """204: it gets no new tasks of that job, keeps its other jobs, and finishes its tasks."""
    job = await register(client)
    other = await register(client, "Scale", worker_id=job["worker_id"])
    for which in (job, job, other):
        await submit(client, which)
    held = await claim(client, job["worker_id"])
    response = await client.delete(f"{WORKERS}/{job['worker_id']}/jobs/{spelled(job['full_name'])}")
    assert (response.status_code, response.content) == (204, b"")
    assert (await claim(client, job["worker_id"]))["job_name"] == other["full_name"]
    assert await claim(client, job["worker_id"]) is None
    for status in ("running", "completed"):
        assert (await report(client, held, status, attempt=held["attempt"])).status_code == 200


async def test_a_job_is_deleted_when_its_last_worker_leaves_it(
    client: httpx.AsyncClient, events: list[Emission]
) -> None:
    """Its room is notified once, its history stays readable, and a new registration restores it."""
    job = await register(client, room="lab")
    task = await submit(client, job)
    await claim(client, job["worker_id"])
    events.clear()
    await client.delete(f"{WORKERS}/{job['worker_id']}/jobs/{job['full_name']}")
    assert events == [(JobsInvalidate(), "room:lab")]
    url = f"{V1}/rooms/lab/jobs/{job['full_name']}"
    expect_problem(await client.get(url), 404, "job-not-found")
    assert [t["id"] for t in (await client.get(f"{url}/tasks")).json()["items"]] == [task["id"]]
    again = await client.put(f"{V1}/rooms/lab/jobs", json={"category": "modifiers", "name": "Rotate"})
    assert (again.status_code, again.json()["id"]) == (201, job["id"])


async def test_permissions_to_remove_a_job_from_a_worker(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """The owner and superusers; 404 for an unknown worker or another job, 403 for other users."""
    ada, eve = await as_user("ada"), await as_user("eve")
    job = await register(ada, room="lab")
    await register(eve, "Scale", room="lab")
    url = f"{WORKERS}/{job['worker_id']}/jobs"
    expect_problem(await eve.delete(f"{url}/lab:modifiers:Unknown"), 403, "forbidden")
    expect_problem(
        await ada.delete(f"{WORKERS}/{UNKNOWN_ID}/jobs/{job['full_name']}"), 404, "worker-not-found"
    )
    for name in ("lab:modifiers:Scale", "lab:modifiers:Unknown", "Rotate"):
        expect_problem(await ada.delete(f"{url}/{name}"), 404, "job-not-found")
    expect_problem(await ada.delete(f"{WORKERS}/x/jobs/{job['full_name']}"), 422, "invalid-request")
    assert (await client.delete(f"{url}/{job['full_name']}")).status_code == 204
    expect_problem(await ada.delete(f"{url}/{job['full_name']}"), 404, "job-not-found")
