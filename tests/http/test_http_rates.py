"""The rate of submits of each user: header fields, 429, and exactness on two servers."""

import asyncio
from datetime import timedelta

import httpx
import pytest
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
        try:
            await replica.runtime.write(rules_rates.take, "ada", count, 10, MINUTE)
        except TooManyRequests:
            return False
        return True

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


async def test_a_clock_that_goes_back_delays_by_the_window_at_most(
    timed: Replica, clock: ManualClock
) -> None:
    """Buckets that are full again are deleted."""
    await timed.runtime.write(rules_rates.take, "ada", 10, 10, MINUTE)
    clock.advance(-3600)
    with pytest.raises(TooManyRequests, match="retry in 6 s"):
        await timed.runtime.write(rules_rates.take, "ada", 1, 10, MINUTE)
    clock.advance(6)
    await timed.runtime.write(rules_rates.take, "ben", 1, 10, MINUTE)
    [retention] = [each for each in rules_retention.RETENTIONS if each.rows == "submit_rate"]
    clock.advance(3600)
    pruned, _ = await timed.runtime.write(rules_retention.prune, retention, timedelta(0), None)
    assert pruned.deleted == 1
    assert [row.user_id for row in await timed.rows(SubmitRate.__table__)] == ["ada"]
