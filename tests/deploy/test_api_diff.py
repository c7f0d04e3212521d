"""A breaking change of the REST API or of a public name is found; an addition is none."""

import json
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from generate import DOCUMENT
from release import ReleaseError
from release.api_diff import check, is_allowed, rest_changes

API: dict[str, Any] = json.loads(DOCUMENT.read_text())
SUBMIT = "/v1/joblib/rooms/{room_id}/tasks/{name}"
SOURCE = """
_MODULES = {"queue": ("Queue", "submit")}
"""
QUEUE = '''
class Queue:
    """A queue."""

    def cancel(self, task: str) -> None:
        """Cancel."""


def submit(job: str, priority: int = 0) -> str:
    """Submit."""
'''


def changed(path: str, **fields: Any) -> dict[str, Any]:
    """Return the document with fields of one object changed; None removes a field."""
    document = deepcopy(API)
    target: Any = document
    for key in path.split("|"):
        target = target[int(key)] if isinstance(target, list) else target[key]
    for name, value in fields.items():
        if value is None:
            del target[name]
        else:
            target[name] = value
    return document


def test_breaking_changes_of_the_rest_api_are_named(subtests: pytest.Subtests) -> None:
    """Each with its operation or schema."""
    needed = {"name": "why", "in": "query", "required": True, "schema": {"type": "string"}}
    parameters = API["paths"][SUBMIT]["post"]["parameters"]
    schemas = "components|schemas"
    cases = [
        (changed(f"paths|{SUBMIT}", post=None), f"POST {SUBMIT} was removed"),
        (
            changed(f"paths|{SUBMIT}|post", parameters=[*parameters, needed]),
            f"POST {SUBMIT}: the query parameter why is now required",
        ),
        (
            changed(f"paths|{SUBMIT}|post", parameters=parameters[1:]),
            f"POST {SUBMIT}: the {parameters[0]['in']} parameter {parameters[0]['name']} was removed",
        ),
        (
            changed(f"{schemas}|TaskResponse|properties", status=None),
            "TaskResponse (response): the field status was removed",
        ),
        (
            changed(f"{schemas}|TaskSubmitRequest", required=["priority"]),
            "TaskSubmitRequest (request): the field priority is now required",
        ),
        (
            changed(f"{schemas}|TaskResponse|properties", id={"type": "integer"}),
            "TaskResponse (response): the field id may now be integer",
        ),
    ]
    for document, expected in cases:
        with subtests.test(expected):
            assert expected in rest_changes(API, document)
    added = changed(f"{schemas}|TaskResponse|properties", news={"type": "string"})
    added["paths"]["/v1/joblib/new"] = {"get": {"responses": {}}}
    assert rest_changes(API, added) == []
    assert rest_changes(API, API) == []


def test_a_release_is_compared_with_its_tag(tmp_path: Path) -> None:
    """A removed name, and a parameter without a default that is new, break it in the same major version."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(init: str, queue: str) -> None:
        package = tmp_path / "src" / "zndraw_joblib"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(init)
        (package / "queue.py").write_text(queue)
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "-m", "change")

    git("init", "--quiet")
    document = tmp_path / "docs" / "reference" / "openapi.json"
    document.parent.mkdir(parents=True)
    document.write_text(json.dumps(API))
    write(SOURCE, QUEUE)
    write(SOURCE, QUEUE)
    assert check(tmp_path) == ["no release is tagged yet: the API was NOT compared"]
    git("tag", "v1.0.0")
    write(SOURCE, QUEUE + "\n\ndef more() -> None:\n    pass\n")
    assert check(tmp_path) == []
    write(SOURCE.replace('"submit"', ""), QUEUE.replace("task: str", "task: str, why: str"))
    with pytest.raises(ReleaseError, match=r"since v1\.0\.0") as error:
        check(tmp_path)
    for part in ("zndraw_joblib.submit was removed", "zndraw_joblib.Queue: cancel", "required: why"):
        assert part in str(error.value)


def test_a_major_version_and_one_after_a_candidate_may_break() -> None:
    """1.1.0 may not break 1.0.0."""
    assert not is_allowed("v1.0.0", "1.1.0")
    assert is_allowed("v1.9.0", "2.0.0rc1")
    assert is_allowed("v1.0.0rc1", "1.0.0")
