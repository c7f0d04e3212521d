"""Folders that others may look into: by the command `share`, and by a program of one's own."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import wait_until

from cli.conftest import Place
from cli.program import PATIENCE, Program
from zndraw_joblib.contract.problems import ProviderFailed

EXAMPLE = Path(__file__).parents[2] / "examples" / "provider.py"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file, beside one that nobody may read."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "out").symlink_to("../secret")
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.fixture
def keep() -> Iterator[Start]:
    """Return a function that keeps a process, and kills it at the end if need be."""
    with ExitStack() as stack:

        def keep(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield keep


def names(place: Place, room: str) -> list[str]:
    """Return what can be read from a room."""
    return sorted(one.full_name for one in place.caller.providers(room).items)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_folder_is_shared_until_a_signal(
    place: Place, folder: Path, keep: Start, number: signal.Signals
) -> None:
    """Others list it and read its files, and nothing beside it; then it is gone."""
    room = f"sharing-{number}"
    sharing = keep(place.program.start("share", str(folder), "--name", "data", "--room", room))
    offered = [f"{room}:files:data", f"{room}:folders:data"]
    wait_until(lambda: names(place, room) == offered or sharing.poll() is not None)
    listed = place.caller.read_provider(f"{room}:folders:data").json()
    assert [(one["name"], one["type"]) for one in listed["items"]] == [("a.txt", "file"), ("out", "other")]
    read = place.caller.read_provider(f"{room}:files:data", {"path": "a.txt", "offset": 4, "length": 3})
    assert read.content == b"two"
    with pytest.raises(ProviderFailed, match="no such file"):
        place.caller.read_provider(f"{room}:files:data", {"path": "out"})
    sharing.send_signal(number)
    assert sharing.wait(PATIENCE) == 0
    assert names(place, room) == []


def test_the_example(place: Place, folder: Path, keep: Start) -> None:
    """A provider of one's own, beside the folder itself."""
    room = "example"
    token = place.program.ok("token", "create", "example", URL=place.server.url).strip()
    env = {**place.program.env, "ZNDRAW_JOBLIB_TOKEN": token}
    example = keep(
        subprocess.Popen(
            [sys.executable, EXAMPLE, str(folder), room], env=env, stderr=subprocess.PIPE, text=True
        )
    )
    wait_until(lambda: len(names(place, room)) == 3 or example.poll() is not None)
    head = place.caller.read_provider(f"{room}:heads:texts", {"path": "a.txt", "lines": 2})
    assert (head.content, head.content_type) == (b"one\ntwo\n", "text/plain; charset=utf-8")
    assert place.caller.read_provider(f"{room}:files:folder", {"path": "a.txt"}).content.startswith(b"one")
    example.send_signal(signal.SIGINT)
    assert example.wait(PATIENCE) == 0
    assert example.stderr is not None
    assert example.stderr.read() == ""


def test_without_fsspec_it_says_how_to_get_it(program: Program) -> None:
    """In one line."""
    [done] = program.each([["share", ".", "--name", "a", "--url", "http://127.0.0.1:1"]], hidden=["fsspec"])
    assert (done.code, done.is_refusal) == (1, True)
    assert "pip install 'zndraw-joblib[files]'" in done.err
