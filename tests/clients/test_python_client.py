"""A client that openapi-python-client makes from the OpenAPI document has every operation, and works."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from generate import DOCUMENT, ROOT
from servers import ServerProcess

# Its own environment: the generator needs an older Typer.
PROGRAMS = ROOT / ".venv-clients" / "bin"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate a client; return its folder."""
    program = PROGRAMS / "openapi-python-client"
    assert program.exists(), f"{program} is not there: run `make peers`"
    folder = tmp_path_factory.mktemp("generated") / "queue_client"
    config = folder.with_name("config.yml")
    config.write_text("post_hooks: []\n")
    command = [program, "generate", "--meta", "none", "--fail-on-warning", f"--config={config}"]
    command += [f"--path={DOCUMENT}", f"--output-path={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_each_operation_has_a_function(client: Path) -> None:
    """The generator leaves out what it does not understand; it has left out nothing."""
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    ids = {one["operationId"] for methods in document["paths"].values() for one in methods.values()}
    made = {path.stem for path in client.glob("api/*/*.py") if path.stem != "__init__"}
    assert made == {re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", one) for one in ids}


def test_the_client_works(client: Path, tmp_path: Path) -> None:
    """It sends what the server expects and understands its answers, problems too."""
    script = Path(__file__).with_name("calls.py")
    with ServerProcess(f"sqlite:///{tmp_path / 'calls.db'}") as server:
        command = [PROGRAMS / "python", "-W", "error", script, server.url, server.token]
        environment = {"PYTHONPATH": str(client.parent)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        *("1", "cancelled", "{'angle':", "90}", "/v1/problems/invalid-task-transition", "1")
    ]
