"""Results of checks, for the command doctor."""

import sys
from collections.abc import Sequence
from enum import StrEnum

from pydantic import BaseModel
from rich.text import Text

from zndraw_joblib.cli.display import console
from zndraw_joblib.contract.terminal import one_line


class State(StrEnum):
    """What a check has found; a `skipped` one could not run here."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Check(BaseModel):
    """One check: what was found, and what to do about it."""

    name: str
    state: State
    detail: str
    remedy: str | None = None


_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "bold red", State.SKIPPED: "dim"}


def passed(name: str, detail: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name=name, state=State.OK, detail=detail)


def warned(name: str, detail: str, remedy: str) -> Check:
    """Return a check that found something to look at."""
    return Check(name=name, state=State.WARNING, detail=detail, remedy=remedy)


def failed(name: str, detail: str, remedy: str) -> Check:
    """Return a check that found a failure."""
    return Check(name=name, state=State.FAILED, detail=detail, remedy=remedy)


def skipped(name: str, detail: str) -> Check:
    """Return a check that could not run here."""
    return Check(name=name, state=State.SKIPPED, detail=detail)


def print_checks(checks: Sequence[Check]) -> None:
    """Print a line for each check, and its remedy below it; in a pipe, tab-separated."""
    if not sys.stdout.isatty():
        for check in checks:
            fields = (check.state, check.name, one_line(check.detail), one_line(check.remedy or ""))
            sys.stdout.write("\t".join(fields) + "\n")
        return
    terminal, width = console(), max(len(check.name) for check in checks)
    for check in checks:
        state = (f"{check.state:<8} ", _STYLES[check.state])
        line = Text.assemble(state, (f"{check.name:<{width}}  ", "bold"), one_line(check.detail))
        terminal.print(line, soft_wrap=True)
        if check.remedy:
            terminal.print(Text(f"{'':<{width + 11}}→ {one_line(check.remedy)}", "dim"), soft_wrap=True)
