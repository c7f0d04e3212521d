"""The OpenAPI document has no fault that Redocly's linter knows."""

import json
import subprocess
from pathlib import Path

from generate import DOCUMENT, types

HERE = Path(__file__).parent


def lint(document: Path) -> list[str]:
    """Return the rules that a document breaks. The linter must not use the network."""
    program = types.MODULES / "@redocly" / "cli" / "bin" / "cli.js"
    assert program.exists(), f"{program} is not there: run `make peers`"
    command: list[str | Path] = [types.NODE, program, "lint", document, "--format=json"]
    offline = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "CI": "1"}
    config = f"--config={HERE / 'redocly.yaml'}"
    done = subprocess.run([*command, config], capture_output=True, text=True, check=False, env=offline)
    return [problem["ruleId"] for problem in json.loads(done.stdout)["problems"]]


def test_the_document_is_clean() -> None:
    """No errors and no warnings by the recommended rules; redocly.yaml has the exceptions."""
    assert lint(DOCUMENT) == []


def test_a_fault_is_found(tmp_path: Path) -> None:
    """An operation without an id, and a reference to nothing."""
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    operation = document["paths"]["/v1/joblib/tasks/{task_id}"]["get"]
    del operation["operationId"]
    operation["responses"]["404"]["content"]["application/problem+json"]["schema"]["$ref"] += "s"
    faulty = tmp_path / "openapi.json"
    faulty.write_text(json.dumps(document))
    assert sorted(set(lint(faulty))) == ["no-unresolved-refs", "operation-operationId"]
