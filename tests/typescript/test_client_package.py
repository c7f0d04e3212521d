"""The client of the npm package, against a real server whose jobs run in Python."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from databases import on_postgresql
from generate import problem_types, types
from generate.files import FILES
from rest import V1, claim, register, report, submit
from servers import ServerProcess, free_port
from tcp_proxy import TcpProxy

from typescript.package import node
from zndraw_joblib import JobManager, connect, job
from zndraw_joblib.worker.serving import Runner

pytestmark = pytest.mark.processes


@job
def echo(value: Any) -> Any:
    """Return what was sent, and write it to the log."""
    print(value)
    return value


@job
def large(order: str) -> Any:
    """Return 100,000 integers, in columns or in rows; as a file they have more than 512 KiB."""
    return np.asarray(np.arange(100_000, dtype=">i8").reshape(250, 400), order=order)  # type: ignore[call-overload]


@job
def halves() -> Any:
    """Return numbers of half precision."""
    return np.array([[1.5, -0.25], [65504, 6e-8]], dtype=np.float16)


@job
def broken(text: str) -> None:
    """Fail with a text."""
    raise ValueError(text)


@job
def idle() -> None:
    """Do nothing: no worker runs it."""


def test_the_committed_problems_are_current() -> None:
    """Each problem of the server has a class."""
    path = next(path for path in FILES if path.name == "problems.ts")
    assert problem_types.text() == path.read_text(encoding="utf-8"), "run `make generate`"


def test_the_client(programs: Path, server: ServerProcess) -> None:
    """Values arrive as they were sent, errors are classes, and each way to submit, wait and follow works."""
    check_client(programs, server)


@pytest.mark.slow
@on_postgresql
def test_the_client_with_postgresql(programs: Path, database_url: str) -> None:
    """All of this does not depend on the database."""
    with ServerProcess(database_url) as server:
        check_client(programs, server)


def check_client(programs: Path, server: ServerProcess) -> None:
    """Run the program with a server whose jobs run here, and compare what it shows."""
    with (
        connect(server.url, server.token) as api,
        JobManager(api, execute=Runner()) as busy,
        JobManager(api) as waiting,
    ):
        for function in (echo, large, halves, broken):
            busy.register(function)
        waiting.register(idle)
        command = [types.NODE, programs / "client.js", server.url, server.token, str(free_port())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    big = {"id": 2**63 + 1, "negative": -9007199254740993, "small": 3}
    assert shown.pop("echo").items() >= big.items()
    assert shown == {
        "same": ["bigint", True, True, True, {"0": 0, "1": 255}],
        "large": ["int64", [250, 400], 1, 400, 100_000],
        "halves": [[1.5, -0.25], [65504, 2**-24]],
        "failed": [True, "error", "no", True],
        "refused": [True, "/v1/problems/invalid-payload", 422, "Unprocessable Content", shown["refused"][4]],
        "missing": [True, "TaskNotFound"],
        "away": [True, False],
        "other": True,
        "keys": [True, True, 2, 1],
        "many": ["InvalidPayload", "task", "InvalidPayload", "task"],
        "atomic": ["InvalidPayload", "tasks.0:"],
        "ended": ["failed", "completed"],
        "group": [5**30, 6],
        "states": ["end"],
        "watched": ["completed", 7],
        "written": "7",
        "room": [True, "completed"],
        "timeout": True,
        "aborted": True,
        "cancelled": True,
        "history": ["pending", "cancelled"],
        "explained": "cancelled",
        "found": 1,
        "left": [True, 1],
        "others": [True, True, True],
        "opened": [0, True],
        "token": ["token: the function returned none within 0.05 s", True],
        "silent": [True, True],
        "hosted": [True, True, True],
        "echoes": False,
        "endless": True,
        "addresses": [
            'url: "127.0.0.1:8000" is not an address, such as http://127.0.0.1:8000',
            'url: "localhost:8000" has to begin with http:// or https://',
            'url: "http://host" has a name or a password, which fetch refuses: pass a token',
            'url: "http:// host" is not an address, such as http://127.0.0.1:8000',
        ],
        "file": True,
        "circular": True,
        "me": ["string", "function", "function"],
    }


async def test_a_stream_goes_on_after_a_lost_connection(programs: Path, server: ServerProcess) -> None:
    """Each event comes once and in order, though the connection breaks between them."""
    proxy = TcpProxy(int(server.url.rpartition(":")[2]))
    async with server.client() as client, proxy.running():
        registered = await register(client)
        task = await submit(client, registered)
        arguments = f"http://127.0.0.1:{proxy.port}", server.token, task["id"]
        with node(programs / "stream.js", *arguments) as program:
            await asyncio.to_thread(program.wait_for, "snapshot")
            held = await claim(client, registered["worker_id"])
            assert held is not None
            await asyncio.to_thread(program.wait_for, "status")
            for number in range(1, 4):
                assert proxy.cut()
                line = {"at": "2026-01-02T03:04:05Z", "text": f"line {number}"}
                details = {"attempt": held["attempt"], "log": {"first": number, "lines": [line]}}
                await client.patch(f"{V1}/tasks/{held['id']}", json=details)
                await asyncio.to_thread(program.wait_for, f"log line {number}")
            proxy.cut()
            await report(client, held, "running")
            await report(client, held, "completed")
            assert await asyncio.to_thread(program.end) == 0
    logged = [f"log line {number}" for number in range(1, 4)]
    ends = ["status", "status", "end", "open lost open", "listeners 0"]
    assert program.lines == ["snapshot", "status", *logged, *ends]


def test_the_package_has_what_its_users_need(programs: Path) -> None:
    """It has modules, types and texts, no sources and no dependency."""
    package = programs / "node_modules" / "zndraw-joblib"
    npm = types.NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [types.NODE, npm, "pack", "--dry-run", "--json", "--ignore-scripts"]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=True)
    (packed,) = json.loads(done.stdout)
    files = {item["path"] for item in packed["files"]}
    assert files >= {
        "LICENSE",
        "README.md",
        "package.json",
        "dist/index.js",
        "dist/worker.d.ts",
        "dist/rest.d.ts",
    }
    assert all(name.endswith((".js", ".d.ts")) for name in files if name.startswith("dist/"))
    assert "dependencies" not in json.loads((package / "package.json").read_text())
