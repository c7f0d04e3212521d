"""Inject one fault into a stage of its own and measure what it did."""

import asyncio
import pickle
import time
from pathlib import Path

import httpx

from chaos.clock import find_library
from chaos.isolation import is_isolated
from chaos.measures import Measured, Outcome, measure, unmeasured
from chaos.records import Fault, RunRecord, read_worker_logs
from chaos.scenarios import Scenario
from chaos.stage import Stage, open_stage

_WARM_UP = 8
_WARM_UP_SECONDS = 60.0
_SETTLE_SECONDS = 8.0
_END_SECONDS = 120.0
_LIMIT_SECONDS = 480.0
_POLL_SECONDS = 0.2


def missing(scenario: Scenario, database: str) -> str | None:
    """Return why this machine cannot inject a fault, or None if it can."""
    parts = scenario.parts_on(database)
    if (parts.network or parts.disk) and not is_isolated():
        return "needs namespaces of its own: run as root, or permit user namespaces, and install iproute2"
    if parts.clock and find_library() is None:
        return "needs libfaketime: pip install libfaketime"
    return None


async def run_scenario(scenario: Scenario, database: str, folder: Path) -> Outcome:
    """Run one fault on a database and return what it did."""
    folder.mkdir(parents=True)  # noqa: ASYNC240
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            return await _run(scenario, database, folder)
    except Exception as error:
        return unmeasured(scenario.name, database, f"{type(error).__name__}: {error}")


async def _run(scenario: Scenario, database: str, folder: Path) -> Outcome:
    async with open_stage(database, folder, scenario.parts_on(database)) as stage:
        assert stage.load is not None
        assert stage.groups is not None
        assert stage.graphs is not None
        await _warm_up(stage)
        stage.groups.receiver.is_flaky = True
        fault = Fault(scenario.name, time.time())
        await scenario.inject(stage)
        fault.ended_at = time.time()
        await asyncio.sleep(_SETTLE_SECONDS)
        load_ended_at = time.time()
        loads = (stage.load, stage.groups, stage.graphs)
        await asyncio.gather(*[load.stop(_END_SECONDS) for load in loads])
        await asyncio.gather(stage.groups.recover(_END_SECONDS), stage.graphs.recover(_END_SECONDS))
        record = await stage.graphs.add_to(await stage.groups.add_to(await _collect(stage)))
        stage.notes += stage.groups.notes
        lanes = [lane.submissions for lane in stage.lanes]
        measured = Measured(
            fault, scenario.is_momentary, scenario.healthy.get(database, ""), lanes, load_ended_at
        )
    (folder / "record.pickle").write_bytes(pickle.dumps((record, measured)))
    return measure(database, record, measured, stage.notes)


async def _warm_up(stage: Stage) -> None:
    """Wait until both lanes work."""
    async with asyncio.timeout(_WARM_UP_SECONDS):
        for lane in stage.lanes:
            while True:
                _, requests = read_worker_logs(lane.entrances[0].log_folder)
                is_remote = bool(lane.entrances[0].workers.slots)
                if not is_remote or sum(it.ends_task and it.is_accepted for it in requests) >= _WARM_UP:
                    break
                await asyncio.sleep(_POLL_SECONDS)
        while not all(any(it.task_id for it in lane.submissions) for lane in stage.lanes):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)


async def _collect(stage: Stage) -> RunRecord:
    """Wait until all accepted tasks have ended, as long as that may take; return the record."""
    assert stage.load is not None
    deadline = time.monotonic() + _END_SECONDS
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            if await stage.healthy.wait_until_ended(stage.load.submissions, remaining):
                break
        except (httpx.HTTPError, ExceptionGroup) as error:
            stage.notes.append(f"a read failed: {error!r}") if remaining < _POLL_SECONDS * 2 else None
            await asyncio.sleep(_POLL_SECONDS)
    stage.healthy.log_folder = stage.folder / "workers"
    return await stage.healthy.collect(stage.load.submissions)
