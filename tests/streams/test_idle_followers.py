"""Rooms that nobody reads any more are followed for a short time, and only a bounded number of them."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest
from fastapi import FastAPI
from rest import V1, expect_problem, register, submit
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from streams.sse import STREAM
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db.room_events import streams as rooms
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue.rules_tokens import digest
from zndraw_joblib.wire.problems import TooManyRequests


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Return settings that allow few streams."""
    settings.max_streams = 3
    return settings


async def test_followers_of_many_rooms(app: FastAPI, client: httpx.AsyncClient) -> None:
    """A client that reads each room once leaves no more followers than streams may be open."""
    streams = app.state.joblib.streams
    first = (await client.get(f"{V1}/rooms/room-0/events")).json()["next"]
    for number in range(1, 10):
        assert (await client.get(f"{V1}/rooms/room-{number}/events")).status_code == 200
        assert len(streams.followed_rooms) <= 3
    assert streams.followed_rooms == ["room-7", "room-8", "room-9"]
    again = (await client.get(f"{V1}/rooms/room-0/events", params={"after": first})).json()
    assert again == {"events": [], "next": first, "ended": False}


async def test_the_number_of_watched_rooms_is_bounded(
    app: FastAPI, client: httpx.AsyncClient, settings: ServerSettings, engine: AsyncEngine
) -> None:
    """Streams of further rooms are refused, those of watched rooms are not; a deleted log makes space."""
    settings.max_watched_rooms = 2
    settings.max_share_per_user = 1
    for room in ("a", "b", "a"):
        assert (await client.get(f"{V1}/rooms/{room}/events")).status_code == 200
    for accept in ({}, STREAM):
        refused = await client.get(f"{V1}/rooms/c/events", headers=accept)
        assert "max_watched_rooms" in expect_problem(refused, 503, "service-unavailable")["detail"]
        assert int(refused.headers["Retry-After"]) > 0
    assert app.state.joblib.streams.followed_rooms == ["a", "b"]
    async with engine.begin() as connection:
        await connection.execute(rooms.delete().where(rooms.c.room_id == "a"))
    assert (await client.get(f"{V1}/rooms/c/events")).status_code == 200


async def test_one_user_leaves_watched_rooms_to_others(
    app: FastAPI, client: httpx.AsyncClient, settings: ServerSettings, engine: AsyncEngine
) -> None:
    """A user's rooms are its share: a further one gets 429 for this user, and its events for another one.

    Rooms without tasks are recorded for 2 minutes, others for `event_retention_seconds`.
    """
    settings.max_watched_rooms = 4
    runtime = app.state.joblib.runtime
    for name in ("ada", "bob"):
        own = digest(f"token-of-{name}-for-the-tests")
        await runtime.write(partial(sql_operators.add_token, name=name, digest=own, is_superuser=False))
    ada, bob = ({"Authorization": f"Bearer token-of-{name}-for-the-tests"} for name in ("ada", "bob"))
    await submit(client, await register(client, room="b"), room="b")
    for room in ("a", "b"):
        assert (await client.get(f"{V1}/rooms/{room}/events", headers=ada)).status_code == 200
    url = f"{V1}/rooms/c/events"
    refused = await client.get(url, headers=ada)
    problem = expect_problem(refused, 429, "too-many-requests")
    assert "max_share_per_user of max_watched_rooms" in problem["detail"]
    assert int(refused.headers["Retry-After"]) > 0
    streams = app.state.joblib.streams

    async def follow(user: str) -> bool:
        async with streams.reader(Identity(user, is_superuser=False), "c"):
            return True

    # Bob joins the follower that Ada may not have.
    assert [
        type(got) for got in await asyncio.gather(*map(follow, ("ada", "bob")), return_exceptions=True)
    ] == [TooManyRequests, bool]
    assert (await client.get(url, headers=bob)).status_code == 200
    async with engine.connect() as connection:
        kept = {row.room_id: row for row in await connection.execute(select(rooms))}
    assert {room: row.watched_by for room, row in kept.items()} == {"a": "ada", "b": "ada", "c": "bob"}
    soon = datetime.now(UTC) + timedelta(minutes=2)
    assert [room for room, row in sorted(kept.items()) if row.watched_until <= soon] == ["a", "c"]


async def test_a_room_is_kept_longer_from_its_first_task_on(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Its events are for those who read them up to `event_retention_seconds` later."""
    job = await register(client, room="new")
    first = (await client.get(f"{V1}/rooms/new/events")).json()["next"]
    await submit(client, job, room="new")

    async def is_kept() -> bool:
        async with engine.connect() as connection:
            [row] = (await connection.execute(select(rooms))).all()
        return row.watched_until > datetime.now(UTC) + timedelta(minutes=10)

    await until(is_kept)
    assert (await client.get(f"{V1}/rooms/new/events", params={"after": first})).json()["events"]
