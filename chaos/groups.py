"""A load of groups with a task at their end, in a room whose webhooks have a flaky receiver."""

import asyncio
import itertools
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx

from chaos.environment import Environment
from chaos.jobs import GROUP_ROOM, MEMBER, SUMMARY
from chaos.receiver import TARGETS, Receiver
from chaos.records import GroupRecord, RunRecord
from chaos.sending import PAUSE_SECONDS, send
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.messages import PaginatedResponse, TaskResponse
from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.webhooks import new_webhook_secret

EVENTS = ("task.completed", "group.ended")
_MEMBER_SECONDS = (0.0, 0.05, 1.0)
# Of the first group and each 30th: its other tasks are old meanwhile, and the statistics have read them.
_LONG_SECONDS, _LONG_EACH = 15.0, 30
_INTERVAL_SECONDS = 1.0
_MAX_OPEN = 16
_GONE_SECONDS = 40.0
_PAGE_SIZE = 500


def settings_for(receiver: Receiver) -> dict[str, Any]:
    """Return the settings of a server that sends webhooks to the receiver and deletes ended members soon."""
    return {
        "webhook_http": True,
        "webhook_ports": receiver.port,
        "webhook_networks": "127.0.0.0/8",
        "webhook_timeout_seconds": 2,
    }


class GroupLoad:
    """Submits groups at a steady rate. Each has three tasks, and one that gets their results at its end.

    Every other group is made, filled and sealed with one request, the others with a request for each step.
    """

    def __init__(self, environment: Environment, receiver: Receiver) -> None:
        self.receiver, self._environment = receiver, environment
        self._numbers = itertools.count()
        self._submitting: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self.groups: list[GroupRecord] = []
        self.notes: list[str] = []

    async def start(self) -> None:
        """Write the webhooks and begin to submit."""
        await self._write_webhooks()
        self._running = asyncio.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Submit no new group; wait at most `seconds` until the submitted ones are accepted."""
        if self._running is not None:
            self._running.cancel()
        if self._submitting:
            await asyncio.wait(self._submitting, timeout=seconds)
        for task in self._submitting:
            task.cancel()

    async def recover(self, seconds: float) -> None:
        """Let the receiver accept everything, as an operator does: write the webhooks again.

        A group is submitted afterwards. Wait at most `seconds` until all has ended and has arrived.
        """
        if "gone" in self.receiver.refused:
            await self._wait_until_disabled()
        self.receiver.is_flaky = False
        await self._write_webhooks()
        await self._submit(self._new_group(is_after_recovery=True))
        deadline = time.monotonic() + seconds
        for group in self.groups:
            await self._wait_for_end(group, deadline)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(1, deadline - time.monotonic())), self.receiver.changed:
                await self.receiver.changed.wait_for(self._has_arrived)

    async def add_to(self, record: RunRecord) -> RunRecord:
        """Add the groups, their last tasks and what has arrived to a record, and return it."""
        summaries: list[TaskResponse] = []
        while True:
            query: dict[str, Any] = {"limit": _PAGE_SIZE, "offset": len(summaries)}
            url = f"{PREFIX}/rooms/{GROUP_ROOM}/jobs/{SUMMARY.name}/tasks"
            response = await self._environment.direct.get(url, params=query)
            response.raise_for_status()
            page = PaginatedResponse[TaskResponse].model_validate_json(response.content)
            summaries += page.items
            if len(page.items) < _PAGE_SIZE:
                break
        for group in self.groups:
            group.summaries = [task for task in summaries if task.payload["number"] == group.number]
            if group.id is not None:
                group.response = await self._get(group.id)
        record.groups, record.arrivals = self.groups, self.receiver.arrivals
        return record

    async def _write_webhooks(self) -> None:
        for target in TARGETS:
            body = {"url": self.receiver.url(target), "events": EVENTS, "secret": new_webhook_secret()}
            await self._send("PUT", f"rooms/{GROUP_ROOM}/webhooks/{target}", body)

    async def _wait_until_disabled(self) -> None:
        """Wait until the server has disabled the webhook whose receiver answered 410."""
        deadline, state = time.monotonic() + _GONE_SECONDS, ""
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                response = await self._environment.direct.get(f"{PREFIX}/rooms/{GROUP_ROOM}/webhooks/gone")
                state = response.json().get("state", "")
            if state == "disabled":
                return
            await asyncio.sleep(PAUSE_SECONDS)
        self.notes.append(f"the webhook whose receiver answered 410 is {state or 'unknown'}")

    async def _run(self) -> None:
        while True:
            if len(self._submitting) < _MAX_OPEN:
                task = asyncio.create_task(self._submit(self._new_group()))
                self._submitting.add(task)
                task.add_done_callback(self._submitting.discard)
            await asyncio.sleep(_INTERVAL_SECONDS)

    def _new_group(self, *, is_after_recovery: bool = False) -> GroupRecord:
        group = GroupRecord(next(self._numbers), is_after_recovery=is_after_recovery)
        self.groups.append(group)
        return group

    async def _submit(self, group: GroupRecord) -> None:
        on_end = {"job": SUMMARY.name, "payload": {"number": group.number, "results": {"$group": "results"}}}
        new = {"room": GROUP_ROOM, "on_end": on_end}
        *short, last = _MEMBER_SECONDS
        durations = [*short, _LONG_SECONDS if group.number % _LONG_EACH == 0 else last]
        tasks = [
            {"room_id": GROUP_ROOM, "job_name": MEMBER.name, "payload": {"number": index, "seconds": seconds}}
            for index, seconds in enumerate(durations)
        ]
        if group.number % 2 == 0:
            answer = await self._send("POST", "tasks/submit", {"tasks": tasks, "group": new})
            group.members = [item["task"]["id"] for item in answer["results"]]
            group.id = answer["group"]
            return
        group_id = (await self._send("POST", "groups", new))["id"]
        for task in tasks:
            answer = await self._send(
                "POST",
                f"rooms/{GROUP_ROOM}/tasks/{MEMBER.name}",
                {"payload": task["payload"], "group": group_id},
            )
            group.members.append(answer["id"])
        await self._send("PATCH", f"groups/{group_id}", {"sealed": True})
        group.id = group_id

    async def _send(self, method: str, path: str, body: Any) -> Any:
        return await send(self._environment.client, method, path, body)

    async def _get(self, group_id: str) -> GroupResponse:
        response = await self._environment.direct.get(f"{PREFIX}/groups/{group_id}")
        response.raise_for_status()
        return GroupResponse.model_validate_json(response.content)

    async def _wait_for_end(self, group: GroupRecord, deadline: float) -> None:
        """Wait until a group and the task at its end have ended."""
        while group.id is not None and time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                response = await self._get(group.id)
                if response.on_end_task is not None:
                    group.summary_id = str(response.on_end_task)
                    if await self._has_ended(response.on_end_task):
                        return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _has_ended(self, task_id: UUID) -> bool:
        response = await self._environment.direct.get(f"{PREFIX}/tasks/{task_id}")
        response.raise_for_status()
        return TaskResponse.model_validate_json(response.content).completed_at is not None

    def _has_arrived(self) -> bool:
        arrived = {(it.target, it.subject) for it in self.receiver.arrivals}
        return all(
            (target, subject) in arrived
            for group in self.groups
            for target in TARGETS
            if target != "gone" or group.is_after_recovery
            for subject in (*group.members, group.id, group.summary_id)
            if subject is not None
        )
