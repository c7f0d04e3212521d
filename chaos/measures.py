"""What a fault did: the row of a scenario, computed from the record of its run."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan

from chaos.checker import check
from chaos.graph_rules import GRAPH_RULES
from chaos.group_rules import GROUP_RULES
from chaos.records import Fault, RunRecord, Submission
from zndraw_joblib.wire.statuses import TaskStatus

HEADER = (
    "fault",
    "database",
    "tasks",
    "lost",
    "completed twice",
    "groups",
    "steps",
    "deliveries",
    "healthy part",
    "longest time without progress (s)",
    "time to recover (s)",
)


@dataclass(frozen=True)
class Outcome:
    """The row of one fault. A `recovery` of None means that the affected part did not recover."""

    fault: str
    database: str
    tasks: int
    lost: Collection[int]
    doubled: Collection[int]
    healthy: str
    longest_gap: float
    recovery: float | None
    notes: Sequence[str] = ()
    wrong_counts: Sequence[str] = ()
    groups: int = 0
    steps: int = 0
    deliveries: int = 0
    violations: Sequence[str] = ()

    @property
    def is_failure(self) -> bool:
        """Whether a guarantee was violated, or the affected part did not recover."""
        is_violated = self.lost or self.doubled or self.wrong_counts or self.violations
        return bool(is_violated) or self.recovery is None

    @property
    def all_notes(self) -> list[str]:
        """The notes, and one for each wrong count and each violated guarantee of groups and steps."""
        counts = [f"add to the counts of a {text}" for text in self.wrong_counts]
        return [*self.notes, *counts, *self.violations]

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table."""
        recovery = "never" if self.recovery is None else f"{self.recovery:.1f}"
        counts = (str(self.tasks), str(len(self.lost)), str(len(self.doubled)))
        return (
            self.fault,
            self.database,
            *counts,
            str(self.groups),
            str(self.steps),
            str(self.deliveries),
            self.healthy or "none",
            f"{self.longest_gap:.1f}",
            recovery,
        )


def unmeasured(fault: str, database: str, reason: str) -> Outcome:
    """Return the outcome of a run that could not be measured; it counts as a failure."""
    return Outcome(fault, database, 0, (), (), "none", nan, None, (reason,))


def completions(record: RunRecord) -> Counter[int]:
    """Return how often the work of each submission completed, whichever task it was in."""
    ends = {
        (it.task_id, it.attempt, it.worker_id)
        for it in record.final_reports
        if it.status == TaskStatus.COMPLETED
    }
    reports = Counter(task_id for task_id, _, _ in ends)
    counted: Counter[int] = Counter()
    for task_id, task in record.tasks_by_id.items():
        history = record.histories.get(task_id)
        steps = sum(step.status == TaskStatus.COMPLETED for step in history.transitions) if history else 0
        is_completed = task.status == TaskStatus.COMPLETED
        counted[task.payload["number"]] += max(is_completed, steps, reports[task_id])
    return counted


def lost_and_doubled(record: RunRecord) -> tuple[set[int], set[int]]:
    """Return the numbers of the submissions whose accepted task did not complete, or completed twice."""
    counted = completions(record)
    accepted = {it.number: it.task_id for it in record.submissions if it.task_id is not None}
    lost = {number for number, task_id in accepted.items() if task_id not in record.tasks_by_id}
    lost |= {number for number in accepted if not counted[number]}
    return lost, {number for number, times in counted.items() if times > 1}


def completion_times(record: RunRecord) -> dict[int, float]:
    """Return when the work of each submission first completed, by this machine's clock."""
    number_of = {task_id: task.payload["number"] for task_id, task in record.tasks_by_id.items()}
    times: dict[int, float] = {}
    for report in record.final_reports:
        if report.status == TaskStatus.COMPLETED and report.task_id in number_of and report.response_at:
            number = number_of[report.task_id]
            times[number] = min(report.response_at, times.get(number, report.response_at))
    for task in record.tasks:
        # A killed worker has no response in its log, and an internal one has no log. No fault of theirs
        # shifts the server's clock.
        if task.completed_at and task.status == TaskStatus.COMPLETED:
            times.setdefault(task.payload["number"], task.completed_at.timestamp())
    return times


def longest_gap(times: Iterable[float], since: float, until: float) -> float:
    """Return the longest time without a completion between two times."""
    moments = sorted([since, *(at for at in times if since < at < until), until])
    return max(later - earlier for earlier, later in pairwise(moments))


def recovery(submissions: Sequence[Submission], times: dict[int, float], since: float) -> float | None:
    """Return the time until all tasks submitted before `since` completed, and one accepted after it."""
    before = [times.get(it.number) for it in submissions if it.sent_at <= since]
    accepted = [it.number for it in submissions if it.response_at is not None and it.response_at > since]
    after = [times[number] for number in accepted if number in times]
    if None in before or not after:
        return None
    return max(0.0, *(at - since for at in before if at is not None), min(after) - since)


@dataclass(frozen=True)
class Measured:
    """What a run is measured by: its fault, its lanes, and how long the load went on."""

    fault: Fault
    is_momentary: bool
    healthy: str
    lanes: Sequence[Sequence[Submission]]
    load_ended_at: float


def measure(database: str, record: RunRecord, measured: Measured, notes: Sequence[str] = ()) -> Outcome:
    """Return the outcome of a run."""
    lost, doubled = lost_and_doubled(record)
    times, fault = completion_times(record), measured.fault
    everything = [submission for lane in measured.lanes for submission in lane]
    watched, affected = measured.lanes if measured.healthy else (everything, everything)
    gap = longest_gap(
        (times[it.number] for it in watched if it.number in times), fault.started_at, measured.load_ended_at
    )
    since = fault.started_at if measured.is_momentary else fault.ended_at
    return Outcome(
        fault.kind,
        database,
        sum(submission.task_id is not None for submission in everything),
        lost,
        doubled,
        measured.healthy,
        gap,
        recovery(affected, times, since),
        notes,
        record.wrong_counts,
        sum(group.id is not None for group in record.groups),
        sum(len(graph.steps) for graph in record.graphs),
        len(record.arrivals),
        [str(violation) for violation in check(record, [*GROUP_RULES, *GRAPH_RULES])],
    )


def format_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table with one row per fault, and the notes below it."""
    rows = [HEADER, tuple("---" for _ in HEADER), *(outcome.cells for outcome in outcomes)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"{it.fault} on {it.database}: {note}" for it in outcomes for note in it.all_notes]
    return "\n".join([*lines, *notes])
