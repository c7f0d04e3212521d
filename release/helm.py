"""Lint and render the chart with Helm's library: `python -m release.helm CHART VALUES TARGET`.

It runs in the environment of requirements/release.txt.
"""

import sys
from pathlib import Path
from typing import Any

from helm_python import Chart, HelmError, lint, values_from_yaml

# Values that the chart refuses, each with a part of the reason.
_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "server.existingSecret"),
    ({"sever": {"replicas": 2}}, "sever"),
    ({"server": {"existingSecret": "a", "replicas": 0}}, "replicas"),
    ({"server": {"existingSecret": "a"}, "workers": {"gpu": {}}}, "args"),
    # Its Deployment and Secret would be those of the servers.
    ({"server": {"existingSecret": "a"}, "workers": {"server": {"args": ["jobs"]}}}, "'server'"),
    ({"server": {"existingSecret": "a"}, "ingress": {"enabled": True}}, "ingress.host"),
]
# The severity of a warning; the remark that a chart may have an icon is less.
_WARNING = 2


def main(chart: Path, values: Path, target: Path) -> int:
    """Write each rendered file to `target`; return 1 if Helm finds a fault, or takes wrong values."""
    given = values_from_yaml(values.read_text())
    faults = [one for one in lint(chart, given, strict=True)["messages"] if one["severity"] >= _WARNING]
    with Chart.load(chart) as loaded:
        for name, text in loaded.render(given, name="joblib", namespace="default").items():
            if name.endswith(".yaml") and text.strip():
                (target / Path(name).name).write_text(text)
        for wrong, reason in _REFUSED:
            try:
                loaded.render(wrong, name="joblib")
                faults.append(f"rendered {wrong}")
            except HelmError as error:
                if reason not in str(error):
                    faults.append(f"{wrong}: {error}")
    print("\n".join(map(str, faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
