"""The view of the command top, in the size of a terminal."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from uuid import uuid4

from rich.console import Console

from zndraw_joblib.cli.top import View, render, sparkline
from zndraw_joblib.wire.operators import (
    FailureGroup,
    FailureGroups,
    Finding,
    FoundTask,
    Interval,
    JobEntry,
    Overview,
    Severity,
    WorkerState,
    WorkerSummary,
)
from zndraw_joblib.wire.progress import Progress
from zndraw_joblib.wire.statuses import StatusCounts

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def a_job(number: int) -> JobEntry:
    """Return a job whose queue has as many tasks as its number."""
    return JobEntry(
        id=uuid4(),
        full_name=f"@global:modifiers:RelaxWithManyStepsAtOnce{number}",
        room_id="@global",
        category="modifiers",
        name=f"RelaxWithManyStepsAtOnce{number}",
        created_at=NOW,
        workers=number % 2,
        slots=1,
        queued=number,
        scheduled=0,
        counts=StatusCounts(failed=number),
        oldest_waiting_at=NOW - timedelta(hours=1),
    )


def a_worker(number: int) -> WorkerSummary:
    """Return a worker that holds as many tasks as its number."""
    return WorkerSummary(
        id=uuid4(),
        last_heartbeat=NOW,
        job_count=1,
        name=f"node-{number}",
        host="very-long-host-name.cluster.example.org",
        state=WorkerState.ACTIVE,
        slots=4,
        held=number,
    )


def a_view() -> View:
    """Return a view of 7 findings, 50 jobs and 40 workers."""
    finding = Finding(
        code="job-without-workers",
        severity=Severity.CRITICAL,
        detail="Job @global:modifiers:Relax has 12 waiting tasks and no worker",
        remedy="Start a worker that serves the job",
    )
    overview = Overview(
        at=NOW,
        findings=[finding] * 7,
        counts=StatusCounts(pending=12, claimed=400, running=3, failed=2),
        queued=12,
        scheduled=0,
        oldest_waiting_at=NOW - timedelta(minutes=5),
        jobs=50,
        paused_jobs=0,
        workers={WorkerState.ACTIVE: 40},
        slots=160,
        slots_used=3,
        servers=[],
        recent=[Interval(start=NOW - timedelta(minutes=1), completed=8)],
    )
    return View("http://127.0.0.1:8000", NOW, overview, [*map(a_job, range(50))], [*map(a_worker, range(40))])


def shown(view: View, width: int, height: int | None) -> str:
    """Return what a terminal shows."""
    output = StringIO()
    Console(file=output, width=width).print(render(view, width, height))
    return output.getvalue()


def test_the_view_fits_a_terminal() -> None:
    """Findings come first; the fullest jobs and workers are shown, as many as have room."""
    text = shown(a_view()._replace(problem="gone"), 80, 40)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert "gone" in lines[0]
    assert lines[1].startswith("! Job @global:modifiers:Relax")
    assert " ".join(text.split()).count("Start a worker that serves the job") == 5
    assert text.index("and 2 more findings") < text.index("Waiting 12")
    assert text.index("no worker") < text.index("AtOnce49") < text.index("node-39")
    assert "and 2 more findings" in text
    assert "AtOnce0 " not in text
    whole = shown(a_view(), 200, None)
    assert whole.count("RelaxWithManyStepsAtOnce") == 50
    assert whole.count("very-long-host-name.cluster.example.org") == 40
    assert "more workers" not in whole
    assert "Running 3, claimed ahead 400; 3 of 160 slots in use" in whole


def test_failures_and_running_tasks_have_room_beside_jobs_and_workers() -> None:
    """The most frequent failure and a task with its progress are shown, and in a small terminal neither."""
    group = {"count": 7, "first_at": NOW, "last_at": NOW, "example": uuid4(), "error": "ValueError: bad"}
    failures = [
        FailureGroup(job_name=f"lab:jobs:fail{number}", exception="ValueError", **group)
        for number in range(9)
    ]
    task = {"id": uuid4(), "room_id": "lab", "status": "running", "created_at": NOW, "worker_name": "gpu-1"}
    progress = Progress(current=40, total=100, unit="frames")
    running = [FoundTask(job_name="@global:jobs:relax", progress=progress, **task)]
    newest = FailureGroups(groups=failures, count=2000, is_complete=False)
    view = a_view()._replace(running=running, failures=newest)
    text = shown(view, 100, 50)
    assert len(text.splitlines()) <= 50
    for part in (
        "lab:jobs:fail0",
        "ValueError",
        " bad ",
        "40/100 frames (40%)",
        "gpu-1",
        "AtOnce49",
        "node-39",
    ):
        assert part in text
    assert "relax  " in text
    assert "counts of the newest 2,000 of 2,000 failed tasks" in text
    complete = newest.model_copy(update={"is_complete": True})
    assert "counts of the newest" not in shown(view._replace(failures=complete), 100, 50)
    small = shown(view, 80, 24)
    assert len(small.splitlines()) <= 24
    assert "lab:jobs:fail0" not in small


def test_a_small_terminal_has_each_table() -> None:
    """24 lines show the fullest job and worker, and how many there are more."""
    text = shown(a_view(), 80, 24)
    lines = text.splitlines()
    assert len(lines) <= 24
    for part in ("and 4 more findings", "AtOnce49", "and 48 more jobs", "node-39"):
        assert part in text
    assert lines[-1] == "  and 39 more workers"


def test_the_sparkline_has_a_letter_for_each_minute() -> None:
    """A minute in which few tasks ended differs from one without any."""
    recent = [
        Interval(start=NOW - timedelta(minutes=59), completed=1),
        Interval(start=NOW - timedelta(minutes=1), completed=60, failed=10, cancelled=10),
        Interval(start=NOW - timedelta(hours=3), completed=9),
    ]
    line = sparkline(recent, NOW)
    assert (len(line), line[0], line[1], line[-2], line[-1]) == (60, "▂", "▁", "█", "▁")
    assert set(sparkline([], NOW)) == {"▁"}
