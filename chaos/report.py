"""The table of a run: what each fault has hit, and how soon it was mended."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from chaos.evidence import Evidence, Fault
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

_HEAD = ("fault", "times", "tasks hit", "lost", "doubled", "run again", "failed", "detect s", "recover s")
_WIDTHS = (19, 6, 10, 5, 8, 10, 7, 15, 15)


def table(evidence: Evidence) -> str:
    """Return a line for each kind of fault; times are `median (longest)` in seconds."""
    kinds: dict[str, list[Fault]] = defaultdict(list)
    for fault in evidence.faults:
        kinds[fault.kind].append(fault)
    rows = [_HEAD, *(_row(evidence, kind, faults) for kind, faults in sorted(kinds.items()))]
    return "\n".join(
        "".join(
            f"{cell:<{width}}" if not place else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, _WIDTHS, strict=True))
        )
        for row in rows
    )


def _row(evidence: Evidence, kind: str, faults: Sequence[Fault]) -> tuple[str, ...]:
    hit = [_hit(evidence, fault) for fault in faults]
    tasks = {task for held in hit for task, _ in held}
    standing = [evidence.by_id[task] for task in tasks if task in evidence.by_id]
    begun = defaultdict(set)
    for effect in evidence.effects:
        begun[effect.task].add(effect.attempt)
    ends: dict[str, set[int | None]] = defaultdict(set)
    for call in evidence.ends:
        ends[call.task or ""].add(call.attempt)
    detected = [
        found for fault, held in zip(faults, hit, strict=True) for found in _detected(evidence, fault, held)
    ]
    done = sorted(
        task.completed_at.timestamp()
        for task in evidence.tasks
        if task.status == TaskStatus.COMPLETED and task.completed_at
    )
    recovered = [
        done[place] - fault.at for fault in faults if (place := bisect_right(done, fault.at)) < len(done)
    ]
    return (
        kind,
        str(len(faults)),
        str(len(tasks)),
        str(len(tasks) - sum(task.status in TERMINAL for task in standing)),
        str(sum(len(ends[task]) > 1 for task in tasks)),
        str(sum(len(begun[task]) > 1 for task in tasks)),
        str(sum(task.status == TaskStatus.FAILED for task in standing)),
        _times(detected),
        _times(recovered),
    )


def _hit(evidence: Evidence, fault: Fault) -> set[tuple[str, int]]:
    """Return the tasks, with their attempts, that the fault's workers had begun and not yet reported."""
    begun = {
        (effect.task, effect.attempt)
        for effect in evidence.effects
        if effect.event == "started"
        and effect.at <= fault.at
        and (not fault.pids or effect.pid in fault.pids)
    }
    told = {
        (call.task, call.attempt)
        for call in evidence.calls
        if call.asked in TERMINAL and call.code is not None and (call.answered_at or 0) <= fault.at
    }
    return begun - {(task, attempt) for task, attempt in told if task is not None and attempt is not None}


def _detected(evidence: Evidence, fault: Fault, held: set[tuple[str, int]]) -> list[float]:
    found = [loss.at - fault.at for loss in evidence.losses if (loss.task, loss.attempt) in held]
    return [seconds for seconds in found if seconds > 0] if fault.pids else []


def _times(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.2f} ({max(seconds):.2f})" if seconds else "-"
