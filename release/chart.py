"""Lint the Helm chart, render it, and run the tests of the Kubernetes manifests on the result."""

import sys
from pathlib import Path

import kubernetes_validate
import yaml

from release import ROOT, TOOLS, ReleaseError
from release.commands import run

# The Secret that the complete values name as one that exists.
_EXISTING = """\
apiVersion: v1
kind: Secret
metadata: {name: joblib-keda}
stringData: {token: ""}
"""


def check(repository: Path, folder: Path) -> list[str]:
    """Check the chart with each file of values in its folder `ci`."""
    chart = repository / "deploy" / "helm" / "zndraw-joblib"
    for values in sorted((chart / "ci").glob("*-values.yaml")):
        target = folder / values.stem
        target.mkdir()
        run([TOOLS / "python", "-m", "release.helm", chart, values, target], ROOT)
        _validate(target)
    complete = folder / "complete-values"
    (complete / "existing.yaml").write_text(_EXISTING)
    run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/deploy/test_kubernetes.py"],
        ROOT,
        {"KUBERNETES_MANIFESTS": str(complete)},
    )
    return []


def _validate(folder: Path) -> None:
    for path in sorted(folder.glob("*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(path.read_text())):
            if not manifest["apiVersion"].startswith("keda.sh"):
                try:
                    kubernetes_validate.validate(manifest, "1.34", strict=True)
                except kubernetes_validate.ValidationError as error:
                    raise ReleaseError(f"{path.name}: {manifest['kind']}: {error}") from error
