"""The guarantees of groups, their retention and webhooks, checked in the record of a run."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from chaos.receiver import TARGETS
from chaos.records import GroupRecord, RunRecord
from zndraw_joblib.wire.groups import OnEndState
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TaskStatus

# A violation: the id of a task or group, and what is wrong.
Findings = Iterator[tuple[str, str]]


def a_group_ends_once(record: RunRecord) -> Findings:
    """Each accepted group has ended, and has submitted exactly one task at its end."""
    for group in record.groups:
        if group.id is None:
            continue
        response, submitted = group.response, [str(task.id) for task in group.summaries]
        if response is None or response.ended_at is None:
            yield group.id, f"has not ended; its tasks are {group.members}"
            continue
        if response.total != len(group.members) or response.counts.completed != response.total:
            yield group.id, f"has the counts {response.counts}, of {len(group.members)} tasks"
        if response.on_end_state is not OnEndState.SUBMITTED or submitted != [str(response.on_end_task)]:
            yield (
                group.id,
                f"its end is {response.on_end_state} with task {response.on_end_task}; the room has "
                f"{submitted or 'no task of it'}",
            )
        ends = {it.message for it in record.arrivals if it.subject == group.id and it.target == "steady"}
        if len(ends) > 1:
            yield group.id, f"its end was sent as {len(ends)} different events"


def a_group_ends_after_its_last_task(record: RunRecord) -> Findings:
    """The task at the end of a group starts after the attempts that completed its tasks have finished."""
    finished = {(it.task_id, it.attempt): it.at for it in record.executions if it.event == "finished"}
    started: dict[str, float] = {}
    for it in record.executions:
        if it.event == "started":
            started.setdefault(it.task_id, it.at)
    for group in record.groups:
        for summary in group.summaries:
            at = started.get(str(summary.id), math.inf)
            for member in filter(None, _results(summary)):
                attempt = member["task_id"], member["attempt"]
                if finished.get(attempt, math.inf) > at:
                    yield str(summary.id), f"started before attempt {attempt} of group {group.id} finished"


def retention_keeps_what_is_needed(record: RunRecord) -> Findings:
    """The task at the end of a group got the results of all its tasks, in the order of submission."""
    for group in record.groups:
        for summary in group.summaries if group.id is not None else []:
            members = [member and member.get("task_id") for member in _results(summary)]
            if summary.status is not TaskStatus.COMPLETED:
                yield str(summary.id), f"is {summary.status}: {summary.error}"
            elif members != group.members:
                yield str(summary.id), f"got the results of {members}; the tasks are {group.members}"


def _results(summary: TaskResponse) -> list[Any]:
    """Return the results that the task at the end of a group got; None for each that is missing."""
    result = summary.result if isinstance(summary.result, dict) else {}
    return list(result.get("members", []))


def each_event_arrives(record: RunRecord) -> Findings:
    """Each target has got each event at least once, after the receiver has recovered.

    A webhook that is disabled (410) gets the events after it was written again.
    """
    arrived = {(it.target, it.event, it.subject) for it in record.arrivals}
    for group in record.groups:
        for target in TARGETS if group.id is not None else ():
            if target == "gone" and not group.is_after_recovery:
                continue
            for event, subject in events_of(group):
                if (target, event, subject) not in arrived:
                    yield subject, f"{event} did not arrive at the target {target!r} (group {group.id})"


def events_arrive_in_order(record: RunRecord) -> Findings:
    """A target gets the ends of a group's tasks before that of the group, and then that of its last task."""
    first: dict[tuple[str, str], int] = {}
    for index, it in enumerate(record.arrivals):
        first.setdefault((it.target, it.subject), index)
    for group in record.groups:
        if group.id is None:
            continue
        pairs = [(member, group.id) for member in group.members]
        pairs += [(group.id, str(task.id)) for task in group.summaries[:1]]
        for target in TARGETS:
            for one, other in pairs:
                earlier, later = first.get((target, one)), first.get((target, other))
                if earlier is not None and later is not None and earlier > later:
                    yield other, f"its end arrived at the target {target!r} before that of {one}"


def events_of(group: GroupRecord) -> list[tuple[str, str]]:
    """Return the events of an accepted group, each with the id of its task or group, in their order."""
    events = [("task.completed", member) for member in group.members]
    events += [("group.ended", group.id or "")]
    return [*events, *[("task.completed", str(task.id)) for task in group.summaries[:1]]]


GROUP_RULES: tuple[Callable[[RunRecord], Findings], ...] = (
    a_group_ends_once,
    a_group_ends_after_its_last_task,
    retention_keeps_what_is_needed,
    each_event_arrives,
    events_arrive_in_order,
)
