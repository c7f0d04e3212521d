"""The npm package, built as for a release, and the programs of its tests, compiled beside it as by a user."""

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generate import ROOT, types

PACKAGE = ROOT / "clients" / "typescript"
PROGRAMS = Path(__file__).parent / "programs"
LINE_SECONDS = 60


def tsc(folder: Path, *arguments: str | Path) -> None:
    """Run the TypeScript compiler; it must find nothing."""
    program = types.MODULES / "typescript" / "bin" / "tsc"
    assert program.exists(), f"{program} is not there: run `make peers`"
    command = [types.NODE, program, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def build(target: Path) -> Path:
    """Build the package into `node_modules` of a folder; return its folder there."""
    package = target / "node_modules" / "zndraw-joblib"
    package.mkdir(parents=True)
    tsc(PACKAGE, "--outDir", package / "dist")
    subprocess.run([types.NODE, PACKAGE / "build.mjs", package], check=True)
    for name in ("package.json", "README.md"):
        shutil.copy(PACKAGE / name, package)
    return package


def build_programs(target: Path) -> Path:
    """Build the package and the programs that use it; return the folder of the programs."""
    build(target)
    (target / "package.json").write_text('{"type": "module"}')
    for source in (*PROGRAMS.iterdir(), *(PACKAGE / "examples").glob("*.mjs")):
        shutil.copy(source, target)
    shutil.copytree(PACKAGE / "examples" / "react", target / "react")
    for name in ("@types", "csstype"):
        (target / "node_modules" / name).symlink_to(types.MODULES / name)
    tsc(target)
    return target


class NodeProgram:
    """A program in Node whose output is read line by line."""

    def __init__(self, path: Path, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [types.NODE, path, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait_for(self, text: str) -> str:
        """Return the next line that contains a text."""
        while (line := self._queue.get(timeout=LINE_SECONDS)) is not None:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} is not in the output: {self.lines}")

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(LINE_SECONDS)
        self._reader.join()
        while (line := self._queue.get()) is not None:
            self.lines.append(line)
        return code


@contextmanager
def node(path: Path, *arguments: str, **environment: str) -> Iterator[NodeProgram]:
    """Run a program in Node during the block."""
    program = NodeProgram(path, *arguments, **environment)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()
        program._reader.join()
        assert program.process.stdin is not None
        program.process.stdin.close()
