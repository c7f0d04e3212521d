"""A worker and its server are killed while clients read the events of its task."""

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import pytest
from databases import on_both
from rest import V1
from servers import ServerProcess
from sweeper.test_killed_reporters import start_worker

from streams.sse import Reader, Sse


def said(event: Sse) -> Any:
    """Return what an event says, without its times: a status, a count of progress, the texts of lines."""
    data = event.data["data"]
    if event.event == "progress":
        return data["progress"]["current"]
    return [line["text"] for line in data["lines"]] if event.event == "log" else data["status"]


FIRST = ["pending", "running", ["1.1", "1.2"], 1]
SECOND = ["pending", "running", ["2.1", "2.2"], 1]
END = [["2.3", "2.4"], 3, "completed"]
# Of the second server: long enough for the heartbeats of its worker on a busy machine.
SETTINGS = {"worker_timeout_seconds": 5, "sweeper_interval_seconds": 0.5}


async def read_first(database_url: str) -> tuple[str, list[Sse], int]:
    """Read the first attempt until its worker and then the server are killed; return the task, too."""
    with ServerProcess(database_url) as server:
        async with server.client() as client:
            of_room = Reader(client, "rooms/lab")
            await of_room.until(1)
            worker = await start_worker(server)
            assert await worker.stdout.readline() == b"ready\n"
            task = (await client.post(f"{V1}/rooms/lab/tasks/lab:modifiers:Run", json={})).json()["id"]
            events = list(await of_room.until(1 + len(FIRST)))
            of_task = Reader(client, f"tasks/{task}", events[2].id)
            position = (await of_task.until(2))[-1].id
            worker.kill()
            await worker.wait()
            server.process.kill()
            for reader in (of_task, of_room):
                with suppress(httpx.HTTPError):
                    await reader.close()
            return task, events, position or 0


@pytest.mark.slow
@on_both
async def test_readers_continue_when_a_worker_and_its_server_are_killed(database_url: str) -> None:
    """They get each status, progress and log line of both attempts once, in order, and the end."""
    async with asyncio.timeout(150):
        task, [snapshot, *first], position = await read_first(database_url)
        with ServerProcess(database_url, **SETTINGS) as server:
            async with server.client() as client:
                of_task = Reader(client, f"tasks/{task}", position)
                of_room = Reader(client, "rooms/lab", first[-1].id)
                worker = await start_worker(server)
                await of_room.until(len(SECOND))
                worker.stdin.write(b"\n")
                *ended, end = await of_task.ended()
                second = await of_room.until(len(SECOND + END))
                await of_room.close()
                kept = await client.get(f"{V1}/rooms/lab/events", params={"after": snapshot.id})
                assert await worker.wait() == 0
    assert [said(event) for event in first + second] == FIRST + SECOND + END
    assert [event.data for event in first + second] == kept.json()["events"]
    assert (ended, end.event) == (second, "end")
