"""Run the command line in real processes, with a folder and an environment of their own."""

import codecs
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from forked import ForkedProcess, can_fork

from zndraw_joblib.client.connection import Connection, connect

TIMEOUT = 60.0
Process = subprocess.Popen[str] | ForkedProcess
# Runs several command lines in one process, because starting the interpreter takes most of the time.
_RUN_ALL = """
import contextlib, io, json, os, sys
commands, hidden = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(hidden))
from zndraw_joblib.cli import main
done = []
environment = dict(os.environ)
for sys.argv[1:] in commands:
    os.environ.clear()
    os.environ.update(environment)
    while sys.argv[1:] and sys.argv[1].startswith("ZNDRAW_JOBLIB_"):
        os.environ.update([sys.argv.pop(1).split("=", 1)])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            done.append((end.code or 0, out.getvalue(), err.getvalue()))
json.dump(done, sys.stdout)
"""


class Done(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def is_error_line(self) -> bool:
        """Whether the only output is one error line on standard error."""
        return self.out == "" and self.err.startswith("Error: ") and self.err.count("\n") == 1


class Program:
    """Runs `python -m zndraw_joblib` in `folder`, with only the given settings."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.credentials = folder / "config" / "credentials.json"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ZNDRAW_JOBLIB_")}
        self.env = {
            **clean,
            "ZNDRAW_JOBLIB_CREDENTIALS": str(self.credentials),
            **{f"ZNDRAW_JOBLIB_{name}": value for name, value in settings.items()},
        }

    def start(
        self,
        *arguments: str,
        module: str = "zndraw_joblib",
        folder: Path | None = None,
        output: IO[str] | None = None,
        **settings: str,
    ) -> Process:
        """Start a command of `module`; settings are named without their prefix.

        A command that writes much needs a file for its `output`: a full pipe would stop it.
        """
        env = {**self.env, **{f"ZNDRAW_JOBLIB_{name}": value for name, value in settings.items()}}
        if can_fork(env):
            cwd = folder or self.folder
            return ForkedProcess(arguments, env, module=module, cwd=cwd, output=output or subprocess.PIPE)
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder or self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.PIPE,
            stderr=output or subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **settings: str) -> Done:
        """Run a command to its end, and check that it prints no traceback."""
        with self.start(*arguments, **settings) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        assert "Traceback" not in err
        return Done(process.returncode, out, err)

    def run_all(self, commands: Sequence[Sequence[str]], hidden: Sequence[str] = ()) -> list[Done]:
        """Run commands one after the other in one process that cannot import the `hidden` modules.

        As in a shell, a command may begin with settings: ``ZNDRAW_JOBLIB_TOKEN=abc``.
        """
        done = subprocess.run(
            [sys.executable, "-c", _RUN_ALL],
            input=json.dumps([commands, hidden]),
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        )
        return [Done(*one) for one in json.loads(done.stdout)]

    def ok(self, *arguments: str, **settings: str) -> str:
        """Run a command that must succeed, and return its standard output."""
        done = self.run(*arguments, **settings)
        assert done.code == 0, done
        return done.out

    def error_of(self, *arguments: str, code: int = 1, **settings: str) -> str:
        """Run a command that must fail with one error line, and return that line."""
        done = self.run(*arguments, **settings)
        assert (done.code, done.is_error_line) == (code, True), done
        return done.err

    def saved_tokens(self) -> dict[str, str]:
        """Return the tokens of the credentials file by URL."""
        tokens: dict[str, str] = json.loads(self.credentials.read_text())
        return tokens


class RunningServer:
    """A running `serve`. The constructor returns after the banner; `token` is the saved token."""

    def __init__(self, program: Program, *arguments: str, port: int = 0, **settings: str) -> None:
        self.process = program.start("serve", "--port", str(port), *arguments, **settings)
        self._pieces: list[str] = []
        self._banner = threading.Event()
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        assert self._banner.wait(TIMEOUT)
        match = re.search(r"serves (http://\S+:(\d+))", self.stderr)
        if match is None:
            self.process.kill()
            self._wait()
            raise AssertionError(self.stderr)
        self.url, self.port = match[1], int(match[2])
        self.token = program.saved_tokens().get(self.url) if program.credentials.is_file() else None

    @property
    def stderr(self) -> str:
        """The standard error so far."""
        return "".join(self._pieces)

    def connect(self) -> Connection:
        """Connect with the saved token."""
        return connect(self.url, self.token)

    def stop(self, number: int = signal.SIGINT) -> Done:
        """Stop the server with a signal, and return its output."""
        self.process.send_signal(number)
        done = self._wait()
        assert "Traceback" not in done.err
        return done

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        decode = codecs.getincrementaldecoder("utf-8")().decode
        # The banner is written at once, and so it is read: the constructor returns with all of it.
        while piece := os.read(self.process.stderr.fileno(), 65536):
            self._pieces.append(decode(piece))
            if not self._banner.is_set() and " serves " in self.stderr:
                self._banner.set()
        self._banner.set()

    def _wait(self) -> Done:
        code = self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stderr.close()
        with self.process.stdout as stdout:
            return Done(code, stdout.read(), self.stderr)

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *_: object) -> None:
        # A test may have killed the server itself.
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.kill()
            self._wait()
