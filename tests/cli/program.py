"""The command line as a user runs it: real processes in a folder and an environment of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from zndraw_joblib.worker.api import Connection, connect

PATIENCE = 60.0
# Runs one command line after the other: most of a command's time is the start of the interpreter.
_EACH = """
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
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def is_refusal(self) -> bool:
        """Whether it said one line on standard error, and nothing else."""
        return self.out == "" and self.err.startswith("Error: ") and self.err.count("\n") == 1


class Program:
    """Runs `python -m zndraw_joblib` in `folder`, with no setting but those given."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.credentials = folder / "config" / "credentials.json"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ZNDRAW_JOBLIB_")}
        self.env = {
            **clean,
            "ZNDRAW_JOBLIB_CREDENTIALS": str(self.credentials),
            **{f"ZNDRAW_JOBLIB_{name}": value for name, value in settings.items()},
        }

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start a command; settings without their prefix."""
        return subprocess.Popen(
            [sys.executable, "-m", "zndraw_joblib", *arguments],
            cwd=self.folder,
            env={**self.env, **{f"ZNDRAW_JOBLIB_{name}": value for name, value in settings.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **settings: str) -> Done:
        """Run a command to its end. No command ever shows a traceback."""
        with self.start(*arguments, **settings) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err
        return Done(process.returncode, out, err)

    def each(self, commands: Sequence[Sequence[str]], hidden: Sequence[str] = ()) -> list[Done]:
        """Run commands one after the other in one process that does not find the `hidden` modules.

        As in a shell, a command may begin with settings: ``ZNDRAW_JOBLIB_TOKEN=abc``.
        """
        done = subprocess.run(
            [sys.executable, "-c", _EACH],
            input=json.dumps([commands, hidden]),
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return [Done(*one) for one in json.loads(done.stdout)]

    def ok(self, *arguments: str, **settings: str) -> str:
        """Return the standard output of a command that succeeds."""
        done = self.run(*arguments, **settings)
        assert done.code == 0, done
        return done.out

    def refused(self, *arguments: str, code: int = 1, **settings: str) -> str:
        """Return the one line that a command says when it fails."""
        done = self.run(*arguments, **settings)
        assert (done.code, done.is_refusal) == (code, True), done
        return done.err

    def kept(self) -> dict[str, str]:
        """Return the tokens in the credentials file."""
        tokens: dict[str, str] = json.loads(self.credentials.read_text())
        return tokens


class Serving:
    """A running `serve`; it is there once its banner is."""

    def __init__(self, program: Program, *arguments: str, port: int = 0, **settings: str) -> None:
        self.process = program.start("serve", "--port", str(port), *arguments, **settings)
        self._said: list[str] = []
        self._banner = threading.Event()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        assert self._banner.wait(PATIENCE)
        match = re.search(r"serves (http://\S+:(\d+))", self.said)
        if match is None:
            self.process.kill()
            self._end()
            raise AssertionError(self.said)
        self.url, self.port = match[1], int(match[2])
        self.kept = program.kept().get(self.url) if program.credentials.is_file() else None

    @property
    def said(self) -> str:
        """What it has said so far on standard error."""
        return "".join(self._said)

    def connect(self) -> Connection:
        """Connect with the token that this machine keeps."""
        return connect(self.url, self.kept)

    def stop(self, number: int = signal.SIGINT) -> Done:
        """End it by a signal; return all it said."""
        self.process.send_signal(number)
        done = self._end()
        assert "Traceback" not in done.err
        return done

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line)
            if " serves " in line:
                self._banner.set()
        self._banner.set()

    def _end(self) -> Done:
        code = self.process.wait(PATIENCE)
        self._listening.join(PATIENCE)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stderr.close()
        with self.process.stdout as stdout:
            return Done(code, stdout.read(), self.said)

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self._end()
