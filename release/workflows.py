"""Find jobs of a workflow that run code of others while they may publish, sign or write."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

# They download or publish, and run nothing of the repository or of its dependencies.
_ACTIONS = {
    "actions/attest-build-provenance",
    "actions/download-artifact",
    "actions/setup-node",
    "docker/login-action",
    "pypa/gh-action-pypi-publish",
}
# Programs that install, build or run code. The scripts of a package are code too.
_PROGRAMS = re.compile(
    r"(?<![\w.-])(pip[\d.]*|pipx|uvx?|python[\d.]*|npx|npm(?! publish --ignore-scripts )|pnpm|yarn|node|make"
    r"|tox|cargo|docker(?= )|bash|sh|source|eval|curl|wget)(?![\w-])"
)


def problems(name: str, text: str) -> list[str]:
    """Return what is unsafe in the text of a workflow, a line for each step."""
    workflow = yaml.safe_load(text)
    found = []
    if workflow.get("permissions") != {}:
        found.append(f"{name}: `permissions` at the top is not {{}}: give each job what it needs")
    for job, content in workflow["jobs"].items():
        rights = _rights(content.get("permissions", {}))
        if rights:
            found += [f"{name}, job {job}, which may write {rights}: {one}" for one in _unsafe(content)]
    return found


def _rights(permissions: dict[str, str] | str) -> str:
    if isinstance(permissions, str):
        return "all" if permissions == "write-all" else ""
    return ", ".join(sorted(right for right, level in permissions.items() if level == "write"))


def _unsafe(job: dict[str, Any]) -> Iterator[str]:
    """Yield what does more than publish. The jobs of a workflow that it calls have rights of their own."""
    if not job.get("uses", "./").startswith("./"):
        yield f"it calls a workflow of others: {job['uses']}"
    for step in job.get("steps", []):
        action = step.get("uses", "").partition("@")[0]
        if action and action not in _ACTIONS:
            yield f"it uses {action}: build in a job that may only read, and pass on an artifact"
        if step.get("shell", "bash") != "bash":
            yield f"it runs a step in {step['shell']}, not in bash"
        for program in _PROGRAMS.findall(step.get("run", "")):
            yield f"it runs {program}: build in a job that may only read, and pass on an artifact"
