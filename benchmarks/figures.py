"""The measured figures: printed as they are measured, and written as JSON at the end."""

import json
import operator
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.targets import TARGETS

_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """One measured value, its ratio to the no-op endpoint, and its target.

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
        cells.append(f"ratio {ratio:6.2f}" if ratio is not None else " " * 12)
        if target is not None:
            cells.append(f"target {target}: {'met' if is_met else 'missed'}")
        print("  ".join(cells).rstrip(), flush=True)

    def write(self, path: Path) -> None:
        """Write the figures and the machine as JSON."""
        content = {**machine(), "figures": [asdict(figure) for figure in self.figures]}
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
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
