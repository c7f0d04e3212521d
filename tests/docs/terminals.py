"""Follow a page of the documentation in real terminals."""

import codecs
import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from waiting import wait_until

# A cold interpreter on a busy machine, and the installation of all libraries.
TIMEOUT_SECONDS = 300.0
_BLOCK = re.compile(r"^```(\w+) title=\"([^\"]+)\"\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]|[\x00-\x08\x0b-\x1f]")
_PROMPT = "(ready) "
_AGAIN = "A second Ctrl-C"


class Block(NamedTuple):
    """A block of a page with a title: a file to save, or commands for a terminal."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that have a title."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block with the lines that the page shows of its output."""
    for part in re.split(r"^(?=\$ |\^C)", text, flags=re.MULTILINE):
        command, *shown = part.splitlines() or [""]
        if command:
            yield command.removeprefix("$ "), shown


def as_pattern(shown: list[str]) -> re.Pattern[str]:
    """Return a pattern of the output: `…` stands for anything, and the page may leave out lines."""
    lines = [".*".join(re.escape(part) for part in line.strip().split("…")) for line in shown]
    return re.compile(r"(?s)" + r"\s.*?".join(lines))


class Terminal:
    """A shell on a terminal, during a `with` block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
            cwd=folder,
            env={**environment, "TERM": "xterm", "COLUMNS": "200", "PS1": _PROMPT, "HISTFILE": ""},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._read = ""
        self._start = 0
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()
        self._await_prompt()

    @property
    def shown(self) -> str:
        """What the terminal has shown since the last command."""
        return _CONTROL.sub("", self._read[self._start :])

    def run(self, command: str, shown: list[str]) -> None:
        """Type a command, and wait for its output and, unless it shows a running server, for its end."""
        if command == "^C":
            self._interrupt()
            return
        self._type(command, shown)
        if command.startswith("zndraw-joblib task"):  # what it reads may be there a moment later
            wait_until(lambda: self._shows(shown) or self._type(command, shown), interval=1)
        assert self._shows(shown), self.shown
        assert "Traceback" not in self.shown, self.shown
        assert self._has_ended != _runs_on(command), self.shown

    def _interrupt(self) -> None:
        os.write(self._ours, b"\x03")
        wait_until(lambda: self._has_ended or _AGAIN in self.shown, TIMEOUT_SECONDS)
        if not self._has_ended:  # a worker waits for a task whose cancellation it has not heard of
            os.write(self._ours, b"\x03")
        self._await_prompt()

    def _type(self, command: str, shown: list[str]) -> None:
        self._start = len(self._read)
        os.write(self._ours, f"{command}\n".encode())
        wait_until(lambda: self._has_ended or (_runs_on(command) and self._shows(shown)), TIMEOUT_SECONDS)

    def _shows(self, lines: list[str]) -> bool:
        return as_pattern(lines).search(self.shown.partition("\n")[2]) is not None

    @property
    def _has_ended(self) -> bool:
        return self.shown.endswith(_PROMPT)

    def _await_prompt(self) -> None:
        wait_until(lambda: self._has_ended, TIMEOUT_SECONDS)

    def _read_all(self) -> None:
        # A character of several bytes may arrive in two pieces.
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        try:
            while piece := os.read(self._ours, 65536):
                self._read += decode(piece)
        except OSError:  # Linux: all ends of the terminal are closed
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A hang-up discards a Ctrl-C that no program has got, and under nohup the program ignores it.
        self._interrupt()
        self._shell.send_signal(signal.SIGHUP)
        self._shell.wait(TIMEOUT_SECONDS)
        os.close(self._ours)


def _runs_on(command: str) -> bool:
    return command.startswith(("zndraw-joblib serve", "zndraw-joblib worker", "uvicorn"))
