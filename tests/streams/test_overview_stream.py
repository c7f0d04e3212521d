"""The stream of the overview: at once, then whenever the queue has changed; it counts as a stream."""

import httpx
from databases import on_sqlite
from fastapi import FastAPI
from rest import V1, expect_problem, register, submit
from waiting import until

from streams.sse import Reader

Local = tuple[FastAPI, httpx.AsyncClient]


async def test_readers_get_the_overview_and_each_change(local: Local) -> None:
    """All readers get the same; the server's stop ends the streams."""
    app, client = local
    readers = [Reader(client, "overview") for _ in range(3)]
    for reader in readers:
        assert (await reader.until(1))[0].data["queued"] == 0
    job = await register(client)
    await submit(client, job)

    def has_changed() -> bool:
        return all(reader.events[-1].data["queued"] == 1 for reader in readers)

    await until(has_changed)
    late = Reader(client, "overview")
    assert (await late.until(1))[0].data["queued"] == 1
    assert {event.event for reader in readers for event in reader.events} == {"overview"}
    assert len(app.state.joblib.streams) == 4
    app.state.joblib.begin_stop()
    for reader in [*readers, late]:
        await reader.ended()
    await until(lambda: len(app.state.joblib.streams) == 0)


@on_sqlite
async def test_streams_of_the_overview_are_bounded(local: Local) -> None:
    """They count among the streams of the process."""
    app, client = local
    app.state.joblib.settings.max_streams = 1
    reader = Reader(client, "overview")
    await reader.until(1)
    expect_problem(await client.get(f"{V1}/overview/events"), 503, "service-unavailable")
    app.state.joblib.begin_stop()
    await reader.ended()
