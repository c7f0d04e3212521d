"""Bars of tqdm that report the progress of their task."""

import io
import sys
from typing import Any

import pytest

from sdk.test_captured_output import lines, make_task, run


def reported(task: Any) -> Any:
    """Return the progress that would be reported."""
    report = task.channel.take()
    return report and report.progress


def test_a_bar_reports_progress_and_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn in the terminal as always."""
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    task = make_task()

    def work() -> None:
        for _ in task.tqdm(range(5), unit="frames", desc="reading"):
            pass

    run(task, work)
    assert reported(task) == {"current": 5, "total": 5, "unit": "frames", "message": "reading"}
    assert "reading: 100%" in terminal.getvalue()
    assert lines(task) == []


def test_a_bar_that_is_updated_by_hand_reports_progress() -> None:
    """Its total may be unknown; a bar that is disabled reports nothing."""
    task = make_task()

    def work() -> None:
        with task.tqdm(unit="B", file=io.StringIO()) as bar:
            bar.update(3)
        with task.tqdm(range(9), disable=True) as bar:
            bar.update(9)

    assert run(task, work).error is None
    assert reported(task) == {"current": 3, "unit": "B"}
