"""Another program in a process, which gets commands and writes results and events as lines of JSON."""

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

TIMEOUT = 60.0
ROOT = Path(__file__).parents[2]


class CommandError(Exception):
    """The command raised an exception in the other program."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Peer:
    """A running program. As a context it is killed at the end."""

    def __init__(self, *command: str | Path, needs: Path = ROOT) -> None:
        for path in (needs, *(part for part in command if isinstance(part, Path))):
            assert path.exists(), f"{path.relative_to(ROOT)} is not there: run `make peers`"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: list[dict[str, Any]] = []
        self._answered = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def call(self, do: str, **arguments: Any) -> Any:
        """Send a command; return its answer. Raise `CommandError` if the command raised an exception."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        answer = self._wait(lambda line: "event" not in line, self._answered + 1, do)[-1]
        self._answered += 1
        if "raised" in answer:
            raise CommandError(answer["raised"], answer["text"])
        return answer["answer"]

    def events(self, what: str, **having: Any) -> list[dict[str, Any]]:
        """Return the events of one name so far that have these fields."""
        with self._changed:
            return [line for line in self._lines if _matches(line, what, having)]

    def wait_for(self, what: str, count: int = 1, **having: Any) -> list[dict[str, Any]]:
        """Wait for `count` events of one name that have these fields; return all of them."""
        return self._wait(lambda line: _matches(line, what, having), count, f"{what} {having}")

    def end(self, number: int | None = None) -> int:
        """End the program by a signal, or by the end of its input; return its exit code."""
        assert self.process.stdin is not None
        if number is None:
            self.process.stdin.close()
        else:
            self.process.send_signal(number)
        code = self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        return code

    @property
    def errors(self) -> str:
        """The program's standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._lines.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _wait(self, wanted: Any, count: int, name: str) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [line for line in self._lines if wanted(line)]

        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or len(found()) >= count, TIMEOUT)
            if len(found()) >= count:
                return found()
            lines = "\n".join(map(str, self._lines))
        raise AssertionError(f"not {count} of {name}, but:\n{lines}\n{self.errors}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._errors.close()


def _matches(line: dict[str, Any], what: str, having: dict[str, Any]) -> bool:
    return line.get("event") == what and all(line.get(name) == value for name, value in having.items())
