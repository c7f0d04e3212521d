"""The rate of submits of each user: header fields, 429, and exactness on two servers."""

import asyncio
from datetime import timedelta

import httpx
from databases import OpenDatabase, every_kind, on_both
from replica import ManualClock, Replica
from rest import V1, AsUser, expect_problem, register

from zndraw_joblib.server.db.tables import SubmitRate
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import rules_rates, rules_retention
from zndraw_joblib.wire.problems import TooManyRequests

MINUTE = timedelta(minutes=1)


@on_both
async def test_submits_beyond_the_rate_are_refused(
    settings: ServerSettings, client: httpx.AsyncClient, as_user: AsUser
) -> None:
    """Single and in batches; each user has its own; without the setting there are no header fields."""
    job = await register(client)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    assert "ratelimit" not in (await client.post(url, json={})).headers
    settings.max_submits_per_user = 5
    first = await client.post(url, json={})
    assert first.status_code == 202
    assert first.headers["ratelimit-policy"] == '"submits";q=5;w=60'
    assert first.headers["ratelimit"] in {'"submits";r=4;t=12', '"submits";r=4;t=11'}
    task = {"room_id": "lab", "job_name": job["full_name"], "payload": {}}
    batch = await client.post(f"{V1}/tasks/submit", json={"tasks": [task] * 4})
    assert batch.headers["ratelimit"].startswith('"submits";r=0;t=')
    before = (await client.get(f"{V1}/tasks/counts")).json()
    for path, body in ((url, {}), (f"{V1}/tasks/submit", {"tasks": [task]})):
        refused = await client.post(path, json=body)
        problem = expect_problem(refused, 429, "too-many-requests")
        assert "max_submits_per_user is 5 in 60 s" in problem["detail"]
        assert 1 <= int(refused.headers["retry-after"]) <= 12
        assert refused.headers["ratelimit"].startswith('"submits";r=0;t=')
    assert (await client.get(f"{V1}/tasks/counts")).json() == before
    user = await as_user("other")
    assert (await user.post(url, json={})).status_code == 202


@every_kind
async def test_servers_share_the_buckets(
    timed: Replica, clock: ManualClock, new_database: OpenDatabase
) -> None:
    """Exactly as many as the bucket has, however many servers take at once; then as many as it gains."""
    other = Replica(new_database(clock), timed.engine)

    async def take(replica: Replica, count: int = 1) -> bool:
        taken = await replica.runtime.write(rules_rates.take, "ada", [None], count, 10, MINUTE)
        return isinstance(taken, rules_rates.Tokens)

    for seconds, expected in ((0, 10), (6, 1), (3, 0), (3, 1), (1000, 10)):
        clock.advance(seconds)
        assert (
            sum(await asyncio.gather(*(take(each) for each in (timed, other) for _ in range(10)))) == expected
        )
    clock.advance(1000)
    assert await take(timed, 25)
    clock.advance(95)
    assert not await take(other)
    clock.advance(1)
    assert await take(other)
    await other.runtime.finish()


@every_kind
async def test_a_clock_that_went_back_delays_no_user(timed: Replica, clock: ManualClock) -> None:
    """A bucket fills as if the clock had not changed, also one that owes tokens; full ones are deleted."""

    async def wait(user: str, count: int = 1) -> int:
        taken = await timed.runtime.write(rules_rates.take, user, [None], count, 10, MINUTE)
        return int(taken.headers["Retry-After"]) if isinstance(taken, TooManyRequests) else 0

    assert await wait("ada", 10) == await wait("ben", 1) == await wait("eva", 100) == 0
    clock.advance(-3600)
    assert (await wait("ada"), await wait("ben", 9), await wait("eva")) == (6, 0, 546)
    clock.advance(6)
    assert (await wait("ada"), await wait("ben"), await wait("eva")) == (0, 0, 540)
    [retention] = [each for each in rules_retention.RETENTIONS if each.rows == "submit_rate"]
    clock.advance(100)
    pruned, _ = await timed.runtime.write(rules_retention.prune, retention, timedelta(0), None)
    assert pruned.deleted == 2
    assert [row.user_id for row in await timed.rows(SubmitRate.__table__)] == ["eva"]


@on_both
async def test_repeats_and_refused_submits_need_no_tokens(
    settings: ServerSettings, client: httpx.AsyncClient
) -> None:
    """Single and in batches: also a repeat while there are none, and a task that no job takes."""
    settings.max_submits_per_user = 5
    schema = {"properties": {"x": {"type": "integer"}}}
    job = await register(client, schema=schema)
    url, batches = f"{V1}/rooms/lab/tasks/{job['full_name']}", f"{V1}/tasks/submit"
    task = {"room_id": "lab", "job_name": job["full_name"], "payload": {"x": 1}}
    wrong = task | {"payload": {"x": "1"}}

    async def post(path: str, body: object, status: int, key: str | None = None) -> None:
        headers = {} if key is None else {"Idempotency-Key": key}
        response = await client.post(path, json=body, headers=headers)
        assert response.status_code == status, response.text

    for _ in range(6):
        await post(url, {"payload": {"x": "1"}}, 422)
        await post(f"{V1}/rooms/lab/tasks/@global:modifiers:None", {}, 404)
        await post(batches, {"tasks": [task, wrong], "atomic": True}, 422)
    await post(batches, {"tasks": [wrong] * 5}, 200)
    await post(url, {"payload": {"x": 1}}, 202, "one")
    for _ in range(2):
        await post(batches, {"tasks": [task] * 2}, 200, "two")
        await post(batches, {"tasks": [task] * 2, "atomic": True}, 200, "three")
        await post(url, {"payload": {"x": 1}}, 202, "one")
    await post(url, {"payload": {"x": 1}}, 429)
    await post(url, {"payload": {"x": 2}}, 429, "other")
    # Another request with a key that was used is refused, and gives no token back.
    await post(url, {"payload": {"x": 2}}, 422, "one")
    await post(url, {"payload": {"x": 2}}, 429)
