"""Check the files that GitHub and citation tools read."""

from pathlib import Path

from generate import project

from release import TOOLS, ReleaseError, workflows
from release.commands import run

_SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/dependabot.yml": "dependabot",
}


def check(repository: Path) -> list[str]:
    """Raise `ReleaseError` for a workflow that is wrong or unsafe, or for a file against its schema."""
    files = sorted((repository / ".github" / "workflows").glob("*.yml"))
    if problems := [one for path in files for one in workflows.problems(path.name, path.read_text())]:
        raise ReleaseError("\n".join(problems))
    forms = [
        one for one in (repository / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if one.name != "config.yml"
    ]
    run([TOOLS / "actionlint", *files], repository)
    run(
        [TOOLS / "zizmor", "--offline", "--no-progress", "--quiet", "--min-severity", "medium", *files],
        repository,
    )
    _follows("github-workflows", files, repository)
    _follows("github-issue-forms", forms, repository)
    for name, schema in _SCHEMAS.items():
        _follows(schema, [repository / name], repository)
    if project.URLS:
        return []
    return ["pyproject.toml has no [project.urls]: the packages, the chart and the citation name NO address"]


def _follows(schema: str, files: list[Path], repository: Path) -> None:
    run([TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files], repository)
