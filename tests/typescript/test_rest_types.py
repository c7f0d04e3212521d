"""The types of the REST API are current, fit the server, and refuse wrong calls at compile time."""

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from generate import types
from generate.files import FILES
from servers import ServerProcess

HERE = Path(__file__).parent
DECLARATIONS = next(path for path in FILES if path.name == "rest.d.ts")


def compile_ts(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the TypeScript compiler in the folder of the tests."""
    program = types.MODULES / "typescript" / "bin" / "tsc"
    assert program.exists(), f"{program} is not there: run `make peers`"
    command = [types.NODE, program, *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


def test_the_committed_types_are_current() -> None:
    """They are made from the committed document, which has a test of its own."""
    assert types.rest() == DECLARATIONS.read_text(encoding="utf-8"), "run `make generate`"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the calls in strict mode; return the script."""
    out = tmp_path_factory.mktemp("calls")
    (out / "package.json").write_text('{"type": "module"}')
    (out / "node_modules").symlink_to(types.MODULES)
    done = compile_ts("--project", "tsconfig.json", "--outDir", out)
    assert (done.stdout, done.returncode) == ("", 0)
    return out / "calls.js"


def test_typed_calls_work_against_a_server(script: Path, tmp_path: Path) -> None:
    """A body needs no field that has a default, and the answers have the declared fields."""
    with ServerProcess(f"sqlite:///{tmp_path / 'calls.db'}") as server:
        command = [types.NODE, script, server.url, server.token]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    problem = "/v1/problems/invalid-task-transition"
    assert json.loads(done.stdout) == [1, "cancelled", problem, ["cancelled"]]


def test_wrong_calls_do_not_compile() -> None:
    """Each statement of the file has an error of its own."""
    done = compile_ts("--project", "tsconfig.wrong.json")
    lines = (HERE / "wrong.ts").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.startswith("queue.")}
    assert {int(found) for found in re.findall(r"wrong\.ts\((\d+),", done.stdout)} == expected


@pytest.mark.parametrize("name", ["rest.d.ts", "events.d.ts"])
async def test_a_server_sends_the_types(client: httpx.AsyncClient, name: str) -> None:
    """They need no identity, like the OpenAPI document; a client that has them gets 304."""
    url = f"/v1/joblib/types/{name}"
    found = await client.get(url, headers={"Authorization": ""})
    assert found.content == (DECLARATIONS.parent / name).read_bytes()
    assert found.headers["content-type"].startswith("application/typescript")
    again = await client.get(url, headers={"If-None-Match": found.headers["etag"]})
    assert again.status_code == 304
    for unknown in ("rest.ts", "..%2Fmount.py"):
        assert (await client.get(f"/v1/joblib/types/{unknown}")).status_code == 404
