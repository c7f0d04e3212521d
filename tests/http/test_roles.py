"""Each operation of the table, for each role and scope, in a room of the caller and in another one.

What is expected follows from the row of the operation, so a new row is tested without a change here.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, Header
from rest import V1, expect_problem, register, submit
from test_one_room import (
    OPERATIONS,
    SCHEDULE,
    SECRETS,
    Room,
    World,
    check_contents,
    fill,
    send,
    state,
    status_of,
)

from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.http.admin import MAX_ROOMS
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.names import GLOBAL
from zndraw_joblib.wire.operations import OPERATIONS as ROWS
from zndraw_joblib.wire.operations import Access, Effect, Operation
from zndraw_joblib.wire.scopes import ANY_SCOPE, AccessRole, Scope, scopes_of

OWN, OTHER, ANNEX = "lab", "vault", "annex"
SECRETS_OF_OWN = [text.replace(OTHER, OWN) for text in SECRETS]
ROLES = [str(role) for role in AccessRole]
# Operations of tasks that an operator of the room may use; of workers and providers only their owners may.
OF_TASKS = {
    *(ops.RELEASE_TASK, ops.RETRY_TASK, ops.RUN_TASK_NOW, ops.FAIL_TASK),
    *(ops.UPDATE_TASK, ops.REPORT_TASKS, ops.UPLOAD_TASK_RESULT),
}
# They change what any user of the room has made: for callers without the scope `read` their own only.
OF_WRITERS = {
    *(ops.UPDATE_GROUP, ops.PUT_SCHEDULE, ops.UPDATE_SCHEDULE, ops.RUN_SCHEDULE, ops.DELETE_SCHEDULE)
}
# Their answers name the room of the request, also in a response with the status 200.
ECHOES = {ops.GET_CALLER, ops.SUBMIT_TASKS}


class Caller(NamedTuple):
    """A user with roles or scopes, in some rooms or in all."""

    roles: tuple[str, ...]
    rooms: tuple[str, ...] | None

    @property
    def scopes(self) -> Scope:
        """The scopes of its roles."""
        return scopes_of(self.roles)

    def is_permitted(self, row: Operation[Any]) -> bool:
        """Return whether the row lets the caller in, before its room is checked."""
        if row.missing(self.scopes):
            return False
        is_of_all = bool(row.access & (Access.SUPERUSER | Access.METRICS_TOKEN))
        names_rooms = bool(row.access & (Access.ROOM_WRITE | Access.NAMED_ROOMS))
        return not is_of_all or self.rooms is None or names_rooms

    @property
    def sees_others(self) -> bool:
        """Whether responses may show what others have made."""
        return bool(self.scopes & (Scope.READ | Scope.OPERATE))

    def acts_on_others(self, row: Operation[Any]) -> bool:
        """Return whether the caller may act on what another user owns."""
        if row in OF_WRITERS and not self.sees_others:
            return False
        return Access.OWNER not in row.access or (Scope.OPERATE in self.scopes and row in OF_TASKS)


LIMITED = [Caller((name,), (OWN,)) for name in (*ROLES, *ANY_SCOPE.names) if name not in {"read", "admin"}]
LIMITED.append(Caller((AccessRole.ADMIN,), (OWN,)))
# All are the same user: first those who only see what it has made.
LIMITED.sort(key=lambda caller: caller.sees_others)
SEVERAL = Caller((AccessRole.VIEWER,), (ANNEX, OWN))


async def current_user(x_id: Annotated[str, Header()]) -> Identity:
    """Return the user in the header: a superuser by its name, or roles and rooms as JSON."""
    if not x_id.startswith("["):
        return Identity(x_id, x_id in {"root", "olga"})
    roles, rooms, *jobs = json.loads(x_id)
    return Identity("ann", is_superuser=False, roles=roles, rooms=rooms, jobs=jobs or None)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[FastAPI]:
    """Return a host whose users have roles, without guards of its own."""
    database, host = open_database(database_url), FastAPI()
    settings = JobLibSettings(worker_timeout_seconds=3600, cross_room_jobs=True)
    JobLib(session_maker=database, identity=current_user, settings=settings).mount(host)
    async with host.router.lifespan_context(host):
        yield host
    await database.close()


@pytest.fixture
async def users(app: FastAPI) -> AsyncIterator[dict[Any, httpx.AsyncClient]]:
    """Return the clients of all users."""
    async with AsyncExitStack() as stack:
        clients: dict[Any, httpx.AsyncClient] = {}
        for user in ("root", "olga", SEVERAL, *LIMITED, *[Caller((role,), None) for role in ROLES]):
            header = user if isinstance(user, str) else json.dumps(user)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://host", headers={"X-Id": header}
            )
            clients[user] = await stack.enter_async_context(client)
        yield clients


@pytest.fixture
async def world(users: dict[Any, httpx.AsyncClient]) -> World:
    """Return two rooms of the same contents, of which no caller owns anything."""
    own, other = [await fill(users["olga"], room) for room in (OWN, OTHER)]
    return World(set(), users, own, other)


async def respond(
    world: World, caller: Caller, row: Operation[Any], room: Room
) -> tuple[int, httpx.Response]:
    """Return the response to the request of a row, and its status or that of its first item."""
    request = OPERATIONS[f"{row.method.lower()} {row.template}"]
    response = await send(world.users[caller], f"{row.method} {row.template}", request, room)  # type: ignore[index]
    return status_of(response, request), response


# What later requests need is removed last.
SORTED = sorted(ROWS, key=lambda row: (row.method == "DELETE", row.name == "drain_worker"))


async def test_roles_and_scopes_hold_in_the_rooms_of_the_caller_only(world: World) -> None:
    """A missing scope is named. Another room shows nothing and stays as it is.

    Without the scope `read`, no response shows what another user has in the own room.
    """
    before = await state(world, world.other)
    for caller in LIMITED:
        for row in SORTED:
            status, response = await respond(world, caller, row, world.own)
            about = (caller, row.name, response.text)
            if row.missing(caller.scopes):
                assert response.status_code == 403, about
                assert row.method == "HEAD" or "--role" in response.text, about
            elif not caller.is_permitted(row):
                assert response.status_code == 403, about
                assert "--rooms" in response.text, about
            else:
                assert (status != 403) == caller.acts_on_others(row), about
            check_contents(response, world)
            if response.is_success and not caller.sees_others:
                shown = [text for text in SECRETS_OF_OWN if text in response.text]
                assert not shown, about
            status, response = await respond(world, caller, row, world.other)
            # These are about the caller itself, or about all that it may see.
            if row.access is not Access.CALLER:
                assert status in {403, 404}, (caller, row.name, response.text)
            if row not in ECHOES:
                check_contents(response, world)
    assert await state(world, world.other) == before


# Of a thing whose room the path does not have to name.
OF_THINGS = ("{task_id}", "{group_id}", "{worker_id}", "{provider_id}", "/jobs/{name}", "/claim")


@on_both
async def test_operators_of_a_room_change_nothing_of_others_through_its_paths(world: World) -> None:
    """Jobs, workers, providers and tasks of `@global` and of another room, in the path of their own room."""
    shared = await fill(world.users["root"], GLOBAL)
    before = await state(world, world.other, shared)
    tried = 0
    for role in (AccessRole.OPERATOR, AccessRole.ADMIN):
        for row in SORTED:
            if row.effect is Effect.READ or not any(thing in row.template for thing in OF_THINGS):
                continue
            for room in (world.other, shared):
                foreign = room._replace(room_id=OWN)
                request = OPERATIONS[f"{row.method.lower()} {row.template}"]
                if row is ops.PUT_JOB:
                    request = request._replace(json=lambda _: {"max_attempts": 7})
                user = world.users[Caller((role,), (OWN,))]  # type: ignore[index]
                response = await send(user, f"{row.method} {row.template}", request, foreign)
                status = status_of(response, request)
                assert status in {403, 404}, (role, row.name, room.room_id, response.text)
                tried += 1
    assert tried > 2 * 2 * 15
    assert await state(world, world.other, shared) == before


async def test_roles_without_rooms_have_their_rights_in_all(world: World) -> None:
    """Only operators and admins act on what others own; a worker with a role may serve `@global`."""
    for role in ROLES:
        caller = Caller((role,), None)
        is_operator = Scope.OPERATE in caller.scopes
        for row in SORTED:
            if row is ops.FOLLOW_OVERVIEW and is_operator:
                continue  # its stream does not end
            status, response = await respond(world, caller, row, world.own)
            about = (role, row.name, response.text)
            if row.missing(caller.scopes):
                assert response.status_code == 403, about
            elif Access.OWNER not in row.access:
                # As before there were roles, these name rooms or jobs.
                assert status != 403, about
        body = {"category": "modifiers", "name": f"Of-{role}"}
        put = await world.users[caller].put(f"{V1}/rooms/@global/jobs", json=body)  # type: ignore[index]
        assert put.status_code == (201 if Scope.WORK in caller.scopes else 403), role


async def test_the_demand_of_global_jobs_is_for_those_who_serve_them(world: World) -> None:
    """And for the scope `metrics`: with it alone a caller reads the demand of all jobs, and nothing else."""
    await register(world.users["root"])
    path = f"{V1}/jobs/@global:modifiers:Rotate/demand"
    client = world.users["root"]
    for roles, rooms, of_global, of_all in (
        (["viewer"], None, 403, 403),
        (["worker"], None, 200, 403),
        (["worker"], [OWN], 403, 200),
        (["worker"], [OWN, GLOBAL], 200, 200),
        (["metrics"], None, 200, 200),
        (["metrics"], [OWN], 403, 200),
    ):
        headers = {"X-Id": json.dumps([roles, rooms])}
        answers = [await client.get(url, headers=headers) for url in (path, f"{V1}/demand", f"{V1}/tasks")]
        assert [one.status_code for one in answers[:2]] == [of_global, of_all], (roles, rooms)
        assert (roles == ["metrics"]) <= (answers[2].status_code == 403)


async def test_lists_without_a_room_show_the_rooms_of_the_caller(world: World) -> None:
    """Searches, counts, lists with cursors, ids and statistics; and what the caller learns about itself."""
    viewer = world.users[Caller((AccessRole.VIEWER,), (OWN,))]  # type: ignore[index]
    tasks = (await viewer.get(f"{V1}/tasks")).json()["items"]
    assert {task["room_id"] for task in tasks} == {OWN}
    for path, params in (
        ("/tasks/counts", {}),
        ("/schedules", {}),
        ("/groups", {}),
        ("/audit", {}),
        ("/ids", {"prefix": world.own.running[:4]}),
    ):
        response = await viewer.get(f"{V1}{path}", params=params)
        assert response.status_code == 200, (path, response.text)
        check_contents(response, world)
    me = (await viewer.get(f"{V1}/me", params={"room": OTHER})).json()
    assert (me["roles"], me["scopes"], me["rooms"], me["permissions"]) == (["viewer"], ["read"], [OWN], [])


@on_both
async def test_lists_without_a_room_have_all_rooms_of_the_caller(world: World) -> None:
    """In parts, each item once and in order; workers of these rooms only, with what these see of them."""
    olga, viewer = world.users["olga"], world.users[SEVERAL]  # type: ignore[index]
    annex = await fill(olga, ANNEX)
    await register(olga, "Secret", room=OTHER, worker_id=world.own.worker_id)
    for room in (OWN, OTHER, ANNEX):
        await olga.post(f"{V1}/groups", json={"room": room})
        await olga.post(f"{V1}/rooms/{room}/pause")
        for name in ("daily", "weekly"):
            body = {"job": world.own.job.replace(OWN, room), "every_seconds": 3600}
            await olga.put(f"{V1}/rooms/{room}/schedules/{name}", json=body)
    for path, room_of in (("/schedules", "room_id"), ("/groups", "room"), ("/audit", "room_id")):
        rooms = {}
        for user in (olga, viewer):
            items, cursor = [], {}
            while cursor is not None:
                part = (await user.get(f"{V1}{path}", params={"limit": 2, **cursor})).json()
                items += part["items"]
                cursor = {"cursor": part["next"]} if part["next"] else None
            rooms[user] = items
        expected = [item for item in rooms[olga] if item[room_of] in {OWN, ANNEX}]
        assert {item[room_of] for item in expected} == {OWN, ANNEX}, path
        assert rooms[viewer] == expected, path
    workers = (await viewer.get(f"{V1}/workers")).json()
    found = {worker["id"]: worker["job_count"] for worker in workers["items"]}
    assert (found, workers["total"]) == ({world.own.worker_id: 1, annex.worker_id: 1}, 2)
    response = await viewer.get(f"{V1}/statistics", params={"tag": "x"})
    assert "query.room" in expect_problem(response, 422, "invalid-request")["detail"]


async def use_room(user: httpx.AsyncClient, room: str) -> str:
    """Give a room a task, a group and a schedule. Return the worker of its job."""
    job = await register(user, room=room)
    await submit(user, job, room)
    await user.post(f"{V1}/groups", json={"room": room})
    body = {"job": job["full_name"], "every_seconds": 3600}
    assert (await user.put(f"{V1}/rooms/{room}/schedules/daily", json=body)).status_code == 201
    worker_id: str = job["worker_id"]
    return worker_id


async def rooms_of_lists(client: httpx.AsyncClient, headers: dict[str, str]) -> list[set[str]]:
    """Return the rooms of the first two items of some lists, each read in two parts."""
    rooms = []
    for path, room_of in (("/tasks", "room_id"), ("/groups", "room"), ("/schedules", "room_id")):
        items, query = [], {"limit": 1}
        for _ in range(2):
            part = (await client.get(f"{V1}{path}", params=query, headers=headers)).json()
            items += part["items"]
            query["cursor"] = part["next"]
        rooms.append({item[room_of] for item in items})
    return rooms


@on_both
async def test_a_caller_with_very_many_rooms_lists_all_or_names_some(world: World) -> None:
    """A host or a provider of identities may give so many: a list has a bound, no error of a database."""
    rooms = [f"r{number:03}" for number in range(MAX_ROOMS + 1)]
    olga, ends = world.users["olga"], (rooms[0], rooms[-2])
    for room in ends:
        worker_id = await use_room(olga, room)
    params: dict[Any, dict[str, Any]] = {
        ops.FIND_IDS: {"prefix": "0000"},
        ops.GET_STATISTICS: {"job": f"{ends[0]}:modifiers:Rotate"},
        ops.SEARCH_TASKS: {"status": ["pending", "running"], "job": f"{ends[0]}:modifiers:Rotate"},
    }
    refused, bulk = 0, {"action": "cancel", "filter": {}}
    for number, statuses in ((MAX_ROOMS, {200, 403}), (MAX_ROOMS + 1, {200, 403, 422})):
        headers = {"X-Id": json.dumps([["operator"], rooms[:number]])}
        for row in SORTED:
            if row.method != "GET" or "{" in row.template or row is ops.FOLLOW_OVERVIEW:
                continue
            response = await olga.get(f"{V1}{row.template}", params=params.get(row), headers=headers)
            assert response.status_code in statuses, (row.name, response.text)
            assert response.status_code == 200 or len(response.text) < 1000
            if response.status_code == 422:
                assert "`room` (--room)" in expect_problem(response, 422, "invalid-request")["detail"]
                refused += 1
        preview = await olga.post(f"{V1}/tasks/bulk/preview", json=bulk, headers=headers)
        assert preview.status_code in statuses - {403}, preview.text
    assert refused > 5
    headers = {"X-Id": json.dumps([["operator"], rooms[:MAX_ROOMS]])}
    assert await rooms_of_lists(olga, headers) == [set(ends)] * 3
    claimed = await olga.post(f"{V1}/tasks/claim", json={"worker_id": worker_id}, headers=headers)
    assert claimed.status_code == 403  # another user's worker


async def test_patterns_of_jobs_hold_for_jobs_without_a_worker(app: FastAPI) -> None:
    """An operator with patterns puts no other job."""
    headers = {"X-Id": json.dumps([["operator"], None, "lab:*"])}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://host", headers=headers) as client:
        for room, status in ((OWN, 201), (OTHER, 403)):
            response = await client.put(f"{V1}/rooms/{room}/jobs/{room}:modifiers:New", json={"schema": {}})
            assert response.status_code == status, response.text


async def test_a_submit_without_the_right_to_read_shows_no_task_of_others(app: FastAPI) -> None:
    """The task of another user that holds its unique key is named, and no more; its own is shown."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://host", headers={"X-Id": "bob"}) as bob:
        job = await register(bob, room=OWN)
        url = f"{V1}/rooms/{OWN}/tasks/{job['full_name']}"
        body: dict[str, Any] = {"payload": {"a": 1}, "unique": {"key": "k"}}
        first = (await bob.post(url, json=body)).json()
        body["payload"] = {"a": 0}
        bob.headers["X-Id"] = json.dumps([["submit"], [OWN]])
        refused = expect_problem(await bob.post(url, json=body), 409, "duplicate-task")
        assert (refused["task_id"], "payload" in refused) == (first["id"], False)
        batch = {"tasks": [{"room_id": OWN, "job_name": job["full_name"], **body}]}
        [result] = (await bob.post(f"{V1}/tasks/submit", json=batch)).json()["results"]
        assert (result["status"], "task" in result) == (409, False)
        body = {"payload": {"a": 2}, "unique": {"key": "k", "on_conflict": "replace"}}
        assert (await bob.post(url, json=body)).json()["payload"] == {"a": 2}
        body["unique"] = {"key": "own"}
        assert [(await bob.post(url, json=body)).status_code for _ in range(2)] == [202, 200]


@on_both
async def test_without_the_right_to_read_a_user_acts_on_its_own_groups_and_schedules(world: World) -> None:
    """And names its own predecessors; a group that it made shows failures of its own tasks alone."""
    olga, ann = world.users["olga"], world.users[Caller(("submit",), (OWN,))]  # type: ignore[index]
    schedules = f"{V1}/rooms/{OWN}/schedules"
    for method, path, body in (
        ("PATCH", f"{V1}/groups/{world.own.group_id}", {"sealed": True}),
        ("PATCH", f"{schedules}/{SCHEDULE}", {"paused": True}),
        ("PUT", f"{schedules}/{SCHEDULE}", {"job": world.own.job, "every_seconds": 60}),
        ("POST", f"{schedules}/{SCHEDULE}/run", None),
        ("DELETE", f"{schedules}/{SCHEDULE}", None),
    ):
        response = await ann.request(method, path, json=body)
        assert "--role submitter" in expect_problem(response, 403, "forbidden")["detail"], path
    body = {"job": world.own.job, "every_seconds": 3600, "payload": {"own": 1}}
    assert (await ann.put(f"{schedules}/own", json=body)).json()["payload"] == {"own": 1}
    assert (await ann.post(f"{schedules}/own/run")).json()["payload"] == {"own": 1}
    assert (await ann.patch(f"{schedules}/own", json={"paused": True})).json()["paused"]
    assert (await ann.delete(f"{schedules}/own")).status_code == 204

    url, done = f"{V1}/rooms/{OWN}/tasks/{world.own.job}", world.own.completed
    payload = {"word": {"$result": {"task": done}}}
    for body in ({"after": {"tasks": [done]}, "payload": payload}, {"parent": done}):
        assert "read" in expect_problem(await ann.post(url, json=body), 403, "forbidden")["detail"]
        batch = {"tasks": [{"room_id": OWN, "job_name": world.own.job, **body}]}
        [result] = (await ann.post(f"{V1}/tasks/submit", json=batch)).json()["results"]
        assert result["status"] == 403
    group = (await ann.post(f"{V1}/groups", json={"room": OWN})).json()["id"]
    tasks = [(await user.post(url, json={"group": group})).json()["id"] for user in (ann, olga)]
    assert (await ann.post(url, json={"parent": tasks[0]})).status_code == 202
    root = world.users["root"]
    for task, error in zip(tasks, ("mine", "theirs"), strict=True):
        assert (await root.post(f"{V1}/tasks/{task}/fail", json={"error": error})).status_code == 200
    sealed = (await ann.patch(f"{V1}/groups/{group}", json={"sealed": True})).json()
    assert ([one["id"] for one in sealed["failures"]], sealed["counts"]["failed"]) == (tasks[:1], 2)
    assert len((await olga.get(f"{V1}/groups/{group}")).json()["failures"]) == 2


async def test_wrong_roles_of_a_host_are_an_error_of_the_host(app: FastAPI) -> None:
    """No user gets more rights by a misspelt role, or by a text in place of a list."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        for roles in (["veiwer"], "viewer"):
            response = await client.get(f"{V1}/workers", headers={"X-Id": json.dumps([roles, None])})
            assert "viewer" in expect_problem(response, 500, "internal-server-error")["detail"]


def test_a_superuser_with_roles_or_rooms_has_only_these() -> None:
    """What a host passes limits: `is_superuser` does not undo it."""
    assert not Identity("ann", True, roles=["viewer"]).limited().may(Scope.SUBMIT)
    of_room = Identity("ann", True, rooms=[OWN]).limited()
    assert not of_room.is_superuser
    assert of_room.operates(OWN)
    assert not of_room.operates(OTHER)
    assert not Identity("ann", False, rooms=["@global"]).limited().serves("@global")
    assert Identity("ann", False, roles=["worker"], rooms=["@global"]).limited().serves("@global")
    assert Identity("ann", False, roles=["operator"]).limited().is_superuser
