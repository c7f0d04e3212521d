"""Share a folder with the command `share`, and with the example program."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import wait_until

from cli.conftest import Stack
from cli.program import TIMEOUT, Program
from zndraw_joblib.wire.problems import ProviderFailed

EXAMPLE = Path(__file__).parents[2] / "examples" / "provider.py"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file, and with a link to a file outside."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "out").symlink_to("../secret")
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.fixture
def keep() -> Iterator[Start]:
    """Return a function that registers a process to be killed after the test."""
    with ExitStack() as exits:

        def keep(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
            exits.callback(process.communicate)
            exits.callback(process.kill)
            return process

        yield keep


def names(stack: Stack, room: str) -> list[str]:
    """Return the names of the providers that a room sees."""
    return sorted(one.full_name for one in stack.client.providers(room).items)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_folder_is_shared_until_a_signal(
    stack: Stack, folder: Path, keep: Start, number: signal.Signals
) -> None:
    """A client lists the folder and reads its files, but no file outside; after the signal it is gone."""
    room = f"sharing-{number}"
    sharing = keep(stack.program.start("share", str(folder), "--name", "data", "--room", room))
    expected = [f"{room}:files:data", f"{room}:folders:data"]
    wait_until(lambda: names(stack, room) == expected or sharing.poll() is not None)
    listed = stack.client.read_provider(f"{room}:folders:data").json()
    assert [(one["name"], one["type"]) for one in listed["items"]] == [("a.txt", "file"), ("out", "other")]
    read = stack.client.read_provider(f"{room}:files:data", {"path": "a.txt", "offset": 4, "length": 3})
    assert read.content == b"two"
    with pytest.raises(ProviderFailed, match="no such file"):
        stack.client.read_provider(f"{room}:files:data", {"path": "out"})
    sharing.send_signal(number)
    assert sharing.wait(TIMEOUT) == 0
    assert names(stack, room) == []


def test_the_example_shares_a_folder(stack: Stack, folder: Path, keep: Start) -> None:
    """The example program registers a provider of its own and the folder."""
    room = "example"
    token = stack.program.ok("token", "create", "example", URL=stack.server.url).strip()
    env = {**stack.program.env, "ZNDRAW_JOBLIB_TOKEN": token}
    example = keep(
        subprocess.Popen(
            [sys.executable, EXAMPLE, str(folder), room], env=env, stderr=subprocess.PIPE, text=True
        )
    )
    wait_until(lambda: len(names(stack, room)) == 3 or example.poll() is not None)
    head = stack.client.read_provider(f"{room}:heads:texts", {"path": "a.txt", "lines": 2})
    assert (head.content, head.content_type) == (b"one\ntwo\n", "text/plain; charset=utf-8")
    assert stack.client.read_provider(f"{room}:files:folder", {"path": "a.txt"}).content.startswith(b"one")
    example.send_signal(signal.SIGINT)
    assert example.wait(TIMEOUT) == 0
    assert example.stderr is not None
    assert example.stderr.read() == ""


def test_share_names_the_missing_extra(program: Program) -> None:
    """Without fsspec, the error line names the extra to install."""
    [done] = program.run_all(
        [["share", ".", "--name", "a", "--url", "http://127.0.0.1:1"]], hidden=["fsspec"]
    )
    assert (done.code, done.is_error_line) == (1, True)
    assert "pip install '.[files]'" in done.err
