"""The results that a payload refers to, for a job in this process: of predecessors, and of groups."""

import asyncio
import json
from collections.abc import Callable, Sequence
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json

from zndraw_joblib.jobs.outputs import PAYLOAD_FAULT, UnusableResult, with_parts
from zndraw_joblib.jobs.results import plain_content
from zndraw_joblib.server.process.settings import MIB
from zndraw_joblib.server.queue import rules_groups, rules_results, rules_successors
from zndraw_joblib.server.queue.sql_results import ResultRecord
from zndraw_joblib.server.results.results import TaskResults
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.groups import GROUP_VALUE, referenced_groups, with_results
from zndraw_joblib.wire.problems import ResultExpired, ResultNotFound, TaskNotFound
from zndraw_joblib.wire.successors import referenced_results

# The most bytes of the results that one payload refers to.
MAX_INPUT_BYTES = 32 * MIB
# Longer JSON is parsed in a thread, and in small steps.
_MAX_LOOP_BYTES = 64 * 1024


class Inputs:
    """Reads the results that payloads refer to, for jobs that run in this process.

    They share its memory and its event loop: so those of a payload have a budget of bytes, and long ones are
    parsed beside the loop.
    """

    def __init__(self, runtime: Runtime, results: TaskResults) -> None:
        self._read = runtime.database.read
        self._results = results

    async def fill(self, task_id: UUID, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the payload of a task with the results that it refers to.

        They are those of its predecessors that are too large for its payload, and those of the group that has
        submitted it at its end. A reference to others stays. A payload that cannot have a result has only
        `PAYLOAD_FAULT`.
        """
        budget = _Budget()
        try:
            payload = await self._with_groups(task_id, payload, budget)
            return await self._with_predecessors(task_id, payload, budget)
        except (ResultExpired, ResultNotFound, TaskNotFound, UnusableResult) as problem:
            return {PAYLOAD_FAULT: str(problem)}

    async def _with_groups(self, task_id: UUID, payload: dict[str, Any], budget: "_Budget") -> dict[str, Any]:
        groups = {id_: await self._of_group(id_, task_id, budget) for id_ in set(referenced_groups(payload))}

        def results_of(group_id: UUID) -> Any:
            results = groups[group_id]
            return {GROUP_VALUE: "results", "id": str(group_id)} if results is None else results

        filled: dict[str, Any] = with_results(payload, results_of)
        return filled

    async def _of_group(self, group_id: UUID, task_id: UUID, budget: "_Budget") -> list[Any] | None:
        """Return the results of a group; None if it has not submitted the task."""
        results: list[Any] = []
        after: int | None = 0
        while after is not None:
            part = await self._read(rules_groups.results_for, group_id, task_id, after=after)
            if part is None:
                return None
            budget.take(len(part.lines))
            results += await _beside_loop(_parsed_lines, part.lines)
            after = part.after
        return results

    async def _with_predecessors(
        self, task_id: UUID, payload: dict[str, Any], budget: "_Budget"
    ) -> dict[str, Any]:
        results: dict[UUID, Any] = {}
        for predecessor in {one.task for one in referenced_results(payload) if isinstance(one.task, UUID)}:
            if await self._read(rules_successors.status_of_successor, task_id, predecessor) is None:
                return payload
            result = await self._read(rules_results.find, predecessor)
            rules_results.check(result)
            if result.stored is None:
                budget.take(len(to_json(result.value)))
                results[predecessor] = result.value
            else:
                budget.take(result.stored.size)
                results[predecessor] = await self._content_of(result.stored)
        return with_parts(payload, results.__getitem__) if results else payload

    async def _content_of(self, record: ResultRecord) -> Any:
        content = b"".join([piece async for piece in await self._results.open(record)])
        return await _beside_loop(lambda data: plain_content(data, record.content_type, _loads), content)


class _Budget:
    """The bytes that the results of one payload may have."""

    def __init__(self) -> None:
        self._free = MAX_INPUT_BYTES

    def take(self, size: int) -> None:
        """Raise `UnusableResult` if there are too many, before they are read."""
        self._free -= size
        if self._free < 0:
            raise UnusableResult(
                f"The results that the payload refers to have more than {MAX_INPUT_BYTES // MIB} MiB in all, "
                "which is the most for a job inside the server; let a worker run this job, or return smaller "
                "results, or their address, from the tasks before it"
            )


async def _beside_loop(parse: Callable[[bytes], Any], content: bytes) -> Any:
    """Return what `parse` returns; in a thread for long content."""
    if len(content) <= _MAX_LOOP_BYTES:
        return parse(content)
    return await asyncio.to_thread(parse, content)


def _parsed_lines(lines: bytes) -> Sequence[Any]:
    return [from_json(line)["result"] for line in lines.splitlines()]


class _SmallSteps(json.JSONDecoder):
    """Parses JSON in steps of Python, between which other threads run.

    A parser in C keeps them from running until its end: for a second with 100 MiB.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parse_object, self.parse_array = JSONObject, JSONArray
        self.scan_once = py_make_scanner(self)


def _loads(content: bytes) -> Any:
    return _SmallSteps().decode(content.decode()) if len(content) > _MAX_LOOP_BYTES else json.loads(content)
