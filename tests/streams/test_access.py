"""Who may read a stream, and tokens for clients that cannot send a header."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from cli.program import Program, RunningServer
from databases import on_both, on_sqlite
from fastapi import FastAPI, Header, HTTPException
from replica import ManualClock
from rest import V1, expect_problem, register, revoke_token, submit

from streams.conftest import serving
from streams.sse import ADMIN_TOKEN, STREAM, Reader
from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.admin import rules_token_updates, sql_operators
from zndraw_joblib.server.admin.rules_token_updates import TokenChanges
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.engine import open_engine, open_sessions
from zndraw_joblib.server.queue import rules_tokens
from zndraw_joblib.wire.problems import Unauthorized

Local = tuple[FastAPI, httpx.AsyncClient]


async def token_of(client: httpx.AsyncClient, path: str) -> str:
    """Return a new token for a stream."""
    response = await client.post(f"{V1}/{path}/events/token")
    assert response.status_code == 201, response.text
    return str(response.json()["token"])


async def test_a_token_opens_one_stream(local: Local) -> None:
    """It reads the stream that it was made for, of a task or of a room, without a header."""
    _, client = local
    job = await register(client)
    task = await submit(client, job)
    anonymous = httpx.AsyncClient(base_url=client.base_url, timeout=60)
    paths = ["rooms/lab", "rooms/den", f"tasks/{task['id']}"]
    made = {path: await token_of(client, path) for path in paths}
    for path in paths:
        for other, token in made.items():
            response = await anonymous.get(f"{V1}/{path}/events", params={"token": token})
            if other == path:
                assert response.status_code == 200
            else:
                assert "stream token" in expect_problem(response, 401, "unauthorized")["detail"]
    reader = Reader(anonymous, "rooms/lab", token=made["rooms/lab"])
    [snapshot] = await reader.until(1)
    assert snapshot.data["total"] == 1
    await reader.close()
    await anonymous.aclose()


@on_sqlite
async def test_a_token_opens_nothing_else(local: Local) -> None:
    """Other operations ignore it; a changed, an empty or a foreign token is refused."""
    _, client = local
    token = await token_of(client, "rooms/lab")
    anonymous = httpx.AsyncClient(base_url=client.base_url, timeout=60)
    for path in ("rooms/lab/tasks", "rooms/lab/jobs", "workers"):
        expect_problem(await anonymous.get(f"{V1}/{path}", params={"token": token}), 401, "unauthorized")
        headers = {"Authorization": f"Bearer {token}"}
        expect_problem(await anonymous.get(f"{V1}/{path}", headers=headers), 401, "unauthorized")
    refused = await anonymous.post(f"{V1}/rooms/lab/events/token", params={"token": token})
    expect_problem(refused, 401, "unauthorized")
    text, _, signature = token.partition(".")
    wrong = [
        "",
        "x",
        token[:-1],
        token + "0",
        f"{text}.",
        f".{signature}",
        f"{text[:-1]}.{signature}",
        "é",
        "x" * 9999,
    ]
    for each in wrong:
        response = await anonymous.get(f"{V1}/rooms/lab/events", params={"token": each})
        expect_problem(response, 401, "unauthorized")
    await anonymous.aclose()


async def test_a_token_expires(timed: Any, clock: Any) -> None:
    """After some minutes it is refused, by the database's time."""
    caller = Identity("ada", is_superuser=False)
    made = await timed.runtime.write(rules_tokens.issue_stream_token, "room:lab", caller, "lab")
    read = timed.runtime.database.read
    owner = await read(rules_tokens.verify_stream_token, "room:lab", made.token)
    assert (owner.caller, owner.room_id, owner.seconds) == (caller, "lab", 300)
    clock.advance(299)
    assert (await read(rules_tokens.verify_stream_token, "room:lab", made.token)).seconds == 1
    clock.advance(1)
    with pytest.raises(Unauthorized):
        await read(rules_tokens.verify_stream_token, "room:lab", made.token)


@on_sqlite
async def test_a_revoked_token_ends_its_streams(local: Local) -> None:
    """Those opened with the bearer token, and with a stream token of its user, also if nothing happens."""
    app, client = local
    database = app.state.joblib.runtime.database
    text = rules_tokens.new_token()
    await database.write(sql_operators.add_token, "ada", rules_tokens.digest(text), is_superuser=False)
    headers = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as ada:
        token = await token_of(ada, "rooms/lab")
        anonymous = httpx.AsyncClient(base_url=client.base_url, timeout=60)
        readers = [Reader(ada, "rooms/lab"), Reader(anonymous, "rooms/lab", token=token)]
        other = Reader(client, "rooms/lab")
        for reader in (*readers, other):
            await reader.until(1)
        await revoke_token(app, "ada", text)
        async with asyncio.timeout(app.state.joblib.keep_alive_seconds - 3):
            for reader in readers:
                await reader.ended()
        assert len(app.state.joblib.streams) == 1
        await other.close()
        await anonymous.aclose()


@on_both
async def test_changed_rights_end_the_streams_of_a_token(local: Local) -> None:
    """Within 5 s, and its requests have the new rights. The tokens that it has issued have no more."""
    app, client = local
    write, text = app.state.joblib.runtime.write, rules_tokens.new_token()
    rights = sql_operators.TokenRights(["operator"], ["den", "lab"])
    await write(sql_operators.add_token, "ada", rules_tokens.digest(text), is_superuser=False, rights=rights)
    headers = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as ada:
        for rooms in (["lab"], ["lab", "den"]):
            body = {"jobs": ["*"], "rooms": rooms, "expires_in_seconds": 3600}
            assert (await ada.post(f"{V1}/worker-tokens", json=body)).status_code == 201
        readers = [Reader(ada, "rooms/lab"), Reader(client, "rooms/lab")]
        for reader in readers:
            await reader.until(1)
        end = (await app.state.joblib.runtime.database.read(Transaction.now)) + timedelta(minutes=5)
        changes = TokenChanges(rooms=["lab"], expires_at=[end])
        assert await write(rules_token_updates.update, "ada", changes) == (None, 1)
        async with asyncio.timeout(app.state.joblib.keep_alive_seconds - 3):
            await readers[0].ended()
        expect_problem(await ada.get(f"{V1}/rooms/den/tasks"), 403, "forbidden")
        assert (await ada.get(f"{V1}/me")).json()["rooms"] == ["lab"]
        tokens = await app.state.joblib.runtime.database.read(sql_operators.list_tokens)
        [issued] = [token for token in tokens if token.issued_by == "ada"]
        assert (issued.rooms, issued.expires_at) == ('["lab"]', end)
        assert await write(rules_token_updates.update, issued.name, changes) == ("ada", 0)
        assert await write(rules_token_updates.update, "nobody", changes) is None
        await readers[1].close()


@on_sqlite
async def test_a_stream_ends_with_the_task_of_its_token(local: Local) -> None:
    """Also the idle stream of a child, within 5 s; before, it is open."""
    _, client = local
    job = await register(client, room="lab")
    task = await submit(client, job)
    body = {"worker_id": job["worker_id"], "start": True, "tokens": True}
    held = (await client.post(f"{V1}/tasks/claim", json=body)).json()["task"]
    headers = {"Authorization": f"Bearer {held['token']}"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as token:
        child = (await token.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={"payload": {}})).json()
        readers = [Reader(token, f"tasks/{id_}") for id_ in (task["id"], child["id"])]
        for reader in readers:
            await reader.until(1)
        url, report = f"{V1}/tasks/{task['id']}", {"status": "completed", "attempt": held["attempt"]}
        assert (await client.patch(url, json=report)).status_code == 200
        async with asyncio.timeout(10):
            own, other = [await reader.ended() for reader in readers]
        assert [events[-1].event for events in (own, other)] == ["end", other[0].event]


@on_sqlite
async def test_an_expired_token_is_refused_and_ends_its_streams(local: Local, clock: ManualClock) -> None:
    """Its sockets are those of a revoked token too. Its use is recorded once a minute."""
    app, client = local
    app.state.joblib.keep_alive_seconds = 0.05
    database, tokens = app.state.joblib.runtime.database, app.state.joblib.identity
    database.use_clock(clock)
    text, expires_at = rules_tokens.new_token(), clock.now + timedelta(seconds=2)
    rights = sql_operators.TokenRights(["viewer"], ["lab"], None, expires_at)
    digest = rules_tokens.digest(text)
    await database.write(sql_operators.add_token, "ada", digest, is_superuser=False, rights=rights)
    async with httpx.AsyncClient(
        base_url=client.base_url, headers={"Authorization": f"Bearer {text}"}, timeout=60
    ) as ada:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as anonymous:
            token = await token_of(ada, "rooms/lab")
            readers = [Reader(ada, "rooms/lab"), Reader(anonymous, "rooms/lab", token=token)]
            for reader in readers:
                await reader.until(1)
            for _ in range(2):
                await tokens.record_use()
                [used] = {
                    row.last_used_at
                    for row in await database.read(sql_operators.list_tokens)
                    if row.name == "ada"
                }
                assert used is not None
                assert used < expires_at
            assert await tokens.find_revoked([digest]) == set()
            clock.advance(3)
            for reader in readers:
                await reader.ended()
        assert await tokens.find_revoked([digest]) == {digest}
        expect_problem(await ada.get(f"{V1}/workers"), 401, "unauthorized")
        await database.write(sql_operators.record_use, [digest])
        assert used in {row.last_used_at for row in await database.read(sql_operators.list_tokens)}


@on_sqlite
async def test_a_revoked_token_gets_no_further_event(local: Local) -> None:
    """Access is checked before events are sent, not only while nothing happens."""
    app, client = local
    app.state.joblib.trusted_seconds = 0.0
    database = app.state.joblib.runtime.database
    text = rules_tokens.new_token()
    await database.write(sql_operators.add_token, "ada", rules_tokens.digest(text), is_superuser=False)
    headers = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=60) as ada:
        readers = [Reader(ada, "rooms/lab"), Reader(client, "rooms/lab")]
        for reader in readers:
            await reader.until(1)
        await revoke_token(app, "ada", text)
        await submit(client, await register(client))
        await readers[1].until(2)
        assert [event.event for event in await readers[0].ended()] == ["snapshot"]
        await readers[1].close()


class House:
    """A host: users are named in a header, and some rooms are closed."""

    def __init__(self) -> None:
        self.closed = {"den"}

    async def user(self, x_user: Annotated[str, Header()]) -> Identity:
        """Return the user."""
        return Identity(x_user, is_superuser=False)

    async def readable_room(self, room_id: str, x_user: Annotated[str, Header()]) -> str:
        """Refuse closed rooms."""
        if room_id in self.closed and x_user != "ada":
            raise HTTPException(403, "closed")
        return room_id


@pytest.fixture
async def host(database_url: str) -> AsyncIterator[tuple[House, JobLib, httpx.AsyncClient]]:
    """Serve a host with guarded rooms; the client is a user without rights."""
    house, app, engine = House(), FastAPI(), open_engine(database_url)
    joblib = JobLib(
        session_maker=open_sessions(engine), identity=house.user, readable_room=house.readable_room
    )
    joblib.mount(app)
    async with serving(app, "-") as client:
        client.headers["X-User"] = "bob"
        yield house, joblib, client
    await engine.dispose()


async def test_guards_of_a_host(host: tuple[House, JobLib, httpx.AsyncClient]) -> None:
    """A guard of rooms decides about streams and their tokens, also while a stream is open."""
    house, joblib, client = host
    joblib.keep_alive_seconds = 0.05
    job = await register(client, room="lab")
    task = await submit(client, job, "lab")
    for path, method in (("events", "GET"), ("events/token", "POST")):
        refused = await client.request(method, f"{V1}/rooms/den/{path}", headers=STREAM)
        assert refused.status_code == 403, refused.text
    readers = [Reader(client, "rooms/lab"), Reader(client, f"tasks/{task['id']}")]
    ada = httpx.AsyncClient(base_url=client.base_url, headers={"X-User": "ada"}, timeout=60)
    for_ada = Reader(ada, "rooms/den")
    for reader in (*readers, for_ada):
        await reader.until(1)
    house.closed.add("lab")
    for reader in readers:
        await reader.ended()
    joblib.disconnect_user("ada")
    await for_ada.ended()
    token = await token_of(ada, "rooms/den")
    anonymous = httpx.AsyncClient(base_url=client.base_url, timeout=60)
    reader = Reader(anonymous, "rooms/den", token=token)
    await reader.until(1)
    joblib.disconnect_user("ada")
    await reader.ended()
    await ada.aclose()
    await anonymous.aclose()


async def test_a_stream_of_a_token_ends_with_it(
    host: tuple[House, JobLib, httpx.AsyncClient], clock: ManualClock
) -> None:
    """No guard of the host is asked about it while it is open; the guard decides about the next token."""
    house, joblib, client = host
    joblib.keep_alive_seconds = 0.05
    joblib.runtime.database.use_clock(clock)
    async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as anonymous:
        token = await token_of(client, "rooms/lab")
        clock.advance(298)  # of its 5 minutes
        reader = Reader(anonymous, "rooms/lab", token=token)
        await reader.until(1)
        house.closed.add("lab")
        await reader.ended()
        clock.advance(2)
        refused = await anonymous.get(f"{V1}/rooms/lab/events", params={"token": token})
        expect_problem(refused, 401, "unauthorized")
    assert (await client.post(f"{V1}/rooms/lab/events/token")).status_code == 403


def test_the_access_log_shows_no_token(sqlite_url: str, tmp_path: Path) -> None:
    """The server's log of requests has the path of a stream without its token."""
    program = Program(tmp_path, ADMIN_TOKEN=ADMIN_TOKEN, DATABASE_URL=sqlite_url)
    with RunningServer(program, "--access-log") as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
            token = client.post(f"{V1}/rooms/lab/events/token", headers=headers).json()["token"]
            for path in ("rooms/lab/events", "rooms/den/events", "rooms/lab/tasks"):
                client.get(f"{V1}/{path}", params={"after": "", "token": token})
        log = server.stop().err
    assert len(re.findall(r"GET /v1/joblib/rooms/\w+/(?:events|tasks)\?after= ", log)) == 3, log
    assert token not in log
    assert "token=" not in log
