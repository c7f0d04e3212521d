"""Run a command on a terminal."""

import codecs
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil
from waiting import wait_until

from cli.program import TIMEOUT, Program


class OnTerminal:
    """A command whose standard error is a terminal; with `is_output` and `is_input`, other streams too.

    At the end of its `with` block it has ended, also if the block raised.
    """

    def __init__(
        self,
        program: Program,
        *arguments: str,
        is_output: bool = False,
        is_input: bool = False,
        module: str = "zndraw_joblib",
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**program.env, "TERM": "xterm", "COLUMNS": "120"},
            cwd=program.folder,
            stdin=theirs if is_input else None,
            stdout=theirs if is_output else subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        self.shown = ""
        # A character of several bytes may arrive in two pieces.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read_until(self, text: str) -> None:
        """Read the terminal until it shows a text."""
        while text not in self.shown:
            try:
                self.shown += self._decode(os.read(self._ours, 65536))
            except OSError:  # Linux: all ends of the terminal are closed
                raise AssertionError(f"{text!r} is not in {self.shown!r}") from None

    def write(self, text: str) -> None:
        """Type a text."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C at a question until the command answers: Python misses one just before it reads.

        A second one would end a command that is about to end with a traceback.
        """
        begin = len(self.shown)

        def reads() -> bool:
            return psutil.Process(self.process.pid).status() == psutil.STATUS_SLEEPING

        def has_answered() -> bool:
            while select.select([self._ours], [], [], 0)[0]:
                self.shown += self._decode(os.read(self._ours, 65536))
            is_over = "\n" in self.shown[begin:] or self.process.poll() is not None
            if not is_over and reads():
                self.process.send_signal(signal.SIGINT)
            return is_over

        wait_until(reads)
        with suppress(OSError):  # Linux: all ends of the terminal are closed
            wait_until(has_answered, interval=0.5)

    def end(self) -> tuple[int, str]:
        """Read the terminal until the command has ended. Return its exit code and standard output."""
        try:
            while piece := os.read(self._ours, 65536):
                self.shown += self._decode(piece)
        except OSError:  # Linux: all ends of the terminal are closed
            pass
        out = self.process.communicate(timeout=TIMEOUT)[0]
        return self.process.returncode, (out or b"").decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        os.close(self._ours)
        with self.process:
            self.process.kill()
