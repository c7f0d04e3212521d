"""A load of chains and fans: tasks that wait for others, some of which fail."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import httpx

from chaos.database import count_waves
from chaos.environment import Environment
from chaos.jobs import PART, STEP, STEP_ROOM, Job
from chaos.records import GraphRecord, RunRecord, StepRecord
from chaos.sending import PAUSE_SECONDS, send
from zndraw_joblib.wire.messages import PaginatedResponse, TaskResponse
from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import OnFailure

_CHAIN, _FAN, _FAILING = 5, 20, 1
_STEP_SECONDS, _LONG_SECONDS, _LONG_EACH = 0.02, 15.0, 4
_INTERVAL_SECONDS = 1.0
_MAX_OPEN = 16
_PAGE_SIZE = 500
_NEVER = 1000


class GraphLoad:
    """Submits chains and fans at a steady rate.

    A chain is submitted with a request for each task, and its second task fails, except in one of each round.
    A fan is one atomic batch, or a group that a last task waits for.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._numbers = itertools.count()
        self._submitting: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self.graphs: list[GraphRecord] = []
        chain, fan = self._submit_chain, self._submit_fan
        self._kinds: list[tuple[OnFailure, bool, Callable[..., Coroutine[Any, Any, None]]]] = [
            (OnFailure.FAIL, False, chain),
            (OnFailure.FAIL, True, chain),
            (OnFailure.FAIL, False, fan),
            (OnFailure.HOLD, True, chain),
            (OnFailure.RUN, True, chain),
            (OnFailure.FAIL, True, fan),
            (OnFailure.FAIL, False, self._submit_group),
        ]

    async def start(self) -> None:
        """Begin to submit."""
        self._running = asyncio.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Submit no new graph; wait at most `seconds` until the submitted ones are accepted."""
        if self._running is not None:
            self._running.cancel()
        if self._submitting:
            await asyncio.wait(self._submitting, timeout=seconds)
        for task in self._submitting:
            task.cancel()

    async def recover(self, seconds: float) -> None:
        """Retry the tasks that hold others up, which then complete. Wait at most `seconds` for all ends."""
        deadline = time.monotonic() + seconds
        for graph in self.graphs:
            if graph.success_file:
                await asyncio.to_thread(open(graph.success_file, "w").close)  # noqa: SIM115, ASYNC230
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                if not await self._retry(await self._steps()):
                    return
            await asyncio.sleep(PAUSE_SECONDS)

    async def add_to(self, record: RunRecord) -> RunRecord:
        """Add the graphs and their tasks to a record, and return it."""
        record.graphs, record.steps = self.graphs, await self._steps()
        record.waves = await count_waves(self._environment.database.url)
        return record

    async def _retry(self, tasks: dict[str, TaskResponse]) -> bool:
        """Retry the tasks that hold others up. Return whether anything has not ended yet."""
        is_open = any(task.status not in TERMINAL for task in tasks.values())
        for graph in self.graphs:
            for step in graph.steps if graph.success_file else ():
                if step.fails and tasks[step.id].status is TaskStatus.FAILED:
                    is_open = True
                    await self._environment.direct.post(f"{PREFIX}/tasks/{step.id}/retry")
        return is_open or bool(await count_waves(self._environment.database.url))

    async def _steps(self) -> dict[str, TaskResponse]:
        """Return the tasks that retention does not delete, by their ids."""
        tasks: dict[str, TaskResponse] = {}
        url, offset = f"{PREFIX}/rooms/{STEP_ROOM}/jobs/{STEP.name}/tasks", 0
        while True:
            query = {"limit": _PAGE_SIZE, "offset": offset}
            response = await self._environment.direct.get(url, params=query)
            response.raise_for_status()
            page = PaginatedResponse[TaskResponse].model_validate_json(response.content)
            tasks |= {str(task.id): task for task in page.items}
            offset += len(page.items)
            if len(page.items) < _PAGE_SIZE:
                return tasks

    async def _run(self) -> None:
        while True:
            if len(self._submitting) < _MAX_OPEN:
                task = asyncio.create_task(self._submit(next(self._numbers)))
                self._submitting.add(task)
                task.add_done_callback(self._submitting.discard)
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def _submit(self, number: int) -> None:
        on_failure, fails, submit = self._kinds[number % len(self._kinds)]
        graph = GraphRecord(number, on_failure)
        if on_failure is OnFailure.HOLD:
            graph.success_file = str(self._environment.log_folder / f"success-{number}")
        self.graphs.append(graph)
        try:
            await submit(graph, fails=fails)
        except AssertionError as error:
            graph.refusal = str(error)

    async def _submit_chain(self, graph: GraphRecord, *, fails: bool) -> None:
        """Submit tasks one after the other. Each gets the result of the one before, if there is one."""
        before: list[str] = []
        for index in range(_CHAIN):
            is_failing = fails and index == _FAILING
            fills = before if graph.on_failure is not OnFailure.RUN else []
            body = self._item(graph, before, fills, fails=is_failing)
            answer = await send(self._environment.client, "POST", _url(STEP), body)
            graph.steps.append(StepRecord(answer["id"], before, fills, is_failing))
            before = [answer["id"]]

    async def _submit_fan(self, graph: GraphRecord, *, fails: bool) -> None:
        """Submit a task, many after it, and one that gets all their results, in one batch.

        If all complete, those in the middle are not kept. Sometimes one of them takes long: the others are
        old then, and the statistics have read them.
        """
        parts, last, failing = range(1, _FAN + 1), _FAN + 1, _FAN // 2 if fails else 0
        is_long = not fails and graph.number // len(self._kinds) % _LONG_EACH == 0
        items = [self._item(graph)]
        for index in parts:
            item = self._item(graph, [0], [0], fails=index == failing)
            if is_long and index == _FAN:
                item["payload"]["seconds"] = _LONG_SECONDS
            items.append(item)
        items.append(self._item(graph, [*parts], [*parts]))
        for index, item in enumerate(items):
            job = PART if index in parts and not fails else STEP
            item |= {"room_id": STEP_ROOM, "job_name": job.name}
        body = {"tasks": items, "atomic": True}
        answer = await send(self._environment.client, "POST", "tasks/submit", body)
        ids = [item["task"]["id"] for item in answer["results"]]
        split, members, merge = ids[0], ids[1:last], ids[last]
        graph.steps = [StepRecord(split)]
        for index, member in enumerate(members, start=1):
            graph.steps.append(StepRecord(member, [split], [split], index == failing, is_kept=fails))
        graph.steps.append(StepRecord(merge, members, members))

    async def _submit_group(self, graph: GraphRecord, *, fails: bool) -> None:
        """Submit a task, a group of many after it, and one that waits for the group."""
        client = self._environment.client
        split = (await send(client, "POST", _url(STEP), self._item(graph, fails=fails)))["id"]
        graph.steps.append(StepRecord(split))
        items = [
            {**self._item(graph, [split], [split]), "room_id": STEP_ROOM, "job_name": STEP.name}
            for _ in range(_FAN)
        ]
        answer = await send(client, "POST", "tasks/submit", {"tasks": items, "group": {"room": STEP_ROOM}})
        members = [item["task"]["id"] for item in answer["results"]]
        graph.steps += [StepRecord(member, [split], [split]) for member in members]
        body = self._item(graph) | {"after": {"groups": [answer["group"]]}}
        merge = (await send(client, "POST", _url(STEP), body))["id"]
        graph.steps.append(StepRecord(merge, members))

    def _item(
        self,
        graph: GraphRecord,
        after: list[Any] | None = None,
        fills: list[Any] | None = None,
        *,
        fails: bool = False,
    ) -> dict[str, Any]:
        """Return the body of a submit."""
        payload: dict[str, Any] = {
            "number": graph.number,
            "seconds": _STEP_SECONDS,
            "results": [{"$result": {"task": task}} for task in fills or ()],
        }
        if fails:
            payload |= {"success_file": graph.success_file} if graph.success_file else {"failures": _NEVER}
        waits = {"after": {"tasks": after, "on_failure": graph.on_failure}} if after else {}
        return {"payload": payload, **waits}


def _url(job: Job) -> str:
    return f"rooms/{STEP_ROOM}/tasks/{job.name}"
