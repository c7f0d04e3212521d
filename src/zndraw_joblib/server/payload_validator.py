"""Payload validation in a child process, because with some schemas it takes minutes."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

from pydantic_core import from_json, to_json

if sys.platform != "win32":
    import resource

from zndraw_joblib.contract.problems import InvalidPayload, ServiceUnavailable
from zndraw_joblib.server.service import payloads

_START_SECONDS = 30.0
_MAX_LINE_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 1 << 30
_READY = b"ready\n"


class PayloadValidator:
    """Validator processes, one for each event loop that checks payloads.

    A check may take `check_seconds`; listing all its errors may take `listing_seconds` more. At most
    `max_waiting` checks wait for the process of one event loop.
    """

    def __init__(
        self, *, check_seconds: float = 2.0, listing_seconds: float = 0.5, max_waiting: int = 50
    ) -> None:
        self._check_seconds = check_seconds
        self._listing_seconds = listing_seconds
        self._max_waiting = max_waiting
        self._processes: WeakKeyDictionary[asyncio.AbstractEventLoop, ValidatorProcess] = WeakKeyDictionary()

    async def check(self, schema: str, payload: dict[str, Any]) -> None:
        """Raise `InvalidPayload` if the payload does not match the schema, or the check takes too long.

        The problem lists all errors, or the first one if listing all takes too long. Raises
        `ServiceUnavailable` when too many checks wait.
        """
        process = self._processes.setdefault(asyncio.get_running_loop(), ValidatorProcess())
        if process.waiting >= self._max_waiting:
            raise ServiceUnavailable(
                f"{process.waiting} payloads already wait for validation; try again",
                headers={"Retry-After": "5"},
            )
        request = to_json([schema, payload]) + b"\n"
        errors = await process.errors(request, self._check_seconds, self._listing_seconds)
        payloads.raise_if_invalid(errors)

    async def close(self) -> None:
        """Stop the process of the running event loop, if there is one."""
        process = self._processes.pop(asyncio.get_running_loop(), None)
        if process is not None:
            await process.stop()


class ValidatorProcess:
    """A child process that checks one payload at a time; a new one replaces it after a timeout or a crash."""

    def __init__(self) -> None:
        self.waiting = 0
        self._lock = asyncio.Lock()
        self._process: Process | None = None

    async def errors(
        self, request: bytes, check_seconds: float, listing_seconds: float
    ) -> list[dict[str, str]]:
        """Return the errors of a payload. Raises `InvalidPayload` where the check does not end."""
        self.waiting += 1
        try:
            async with self._lock:
                return await self._check(request, check_seconds, listing_seconds)
        finally:
            self.waiting -= 1

    async def _check(
        self, request: bytes, check_seconds: float, listing_seconds: float
    ) -> list[dict[str, str]]:
        stdin, stdout = await self._start()
        first = listing = b""
        try:
            async with asyncio.timeout(check_seconds):
                stdin.write(request)
                first = await stdout.readline()
            async with asyncio.timeout(listing_seconds):
                listing = await stdout.readline()
        except TimeoutError:
            if not first:
                raise InvalidPayload(
                    f"payload: checking it against the job's schema takes more than {check_seconds:g} s; "
                    "the schema refers to itself too often, or the payload is too large for it"
                ) from None
        finally:
            if not listing:
                await self.stop()
        if not first:
            raise InvalidPayload(
                "payload: it cannot be checked against the job's schema, because the check needs more than "
                f"{_MAX_MEMORY_BYTES >> 20} MiB of memory; simplify the schema or send a smaller payload"
            )
        errors: list[dict[str, str]] = from_json(listing or first)
        return errors

    async def _start(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        is_new = self._process is None or self._process.returncode is not None
        if self._process is None or is_new:
            # In a session of its own, Ctrl-C on the server's terminal does not reach it.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__),
                stdin=PIPE,
                stdout=PIPE,
                limit=_MAX_LINE_BYTES,
                start_new_session=True,
            )
        stdin = cast("asyncio.StreamWriter", self._process.stdin)
        stdout = cast("asyncio.StreamReader", self._process.stdout)
        if is_new:
            async with asyncio.timeout(_START_SECONDS):
                await stdout.readline()
        return stdin, stdout

    async def stop(self) -> None:
        """Kill the process and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _serve() -> None:
    """Answer each request on stdin with two lines: the first error alone, then all errors."""
    _write_line(_READY)
    for line in sys.stdin.buffer:
        schema, payload = from_json(line)
        is_valid = payloads.is_valid(schema, payload)
        _write_line(to_json([] if is_valid else [payloads.first_error(schema, payload)]) + b"\n")
        _write_line(to_json([] if is_valid else payloads.list_errors(schema, payload)) + b"\n")


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _limit_memory() -> None:
    # The validator holds all errors of a payload at once: their number has no bound.
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))


if __name__ == "__main__":
    _limit_memory()
    _serve()
