"""A child process that compiles schemas and validates payloads within limits of time and memory."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast

from pydantic_core import from_json, to_json

from zndraw_joblib.server.process.shared_limit import FairLock, SharedLimit
from zndraw_joblib.server.queue import rules_payloads
from zndraw_joblib.wire.problems import InvalidPayload, InvalidSchema, ServiceUnavailable

if sys.platform != "win32":
    import resource


_START_SECONDS = 30.0
# How long a check may wait for its process.
_WAIT_SECONDS = 10.0
_MAX_LINE_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 1 << 30
_READY = b"ready\n"


class _Crashed(Exception):
    """The process ended before it answered."""


class ValidatorProcess:
    """A child process that does one check at a time; a new one replaces it after a timeout or a crash.

    At most `max_waiting` checks wait, and `share(limit)` of them for one user. Users whose checks wait get
    the same time of the process.
    """

    def __init__(
        self,
        check_seconds: float,
        listing_seconds: float,
        max_waiting: int,
        share: Callable[[int], int] = lambda limit: limit,
    ) -> None:
        self._check_seconds = check_seconds
        self._listing_seconds = listing_seconds
        self._waiting = SharedLimit(
            what="payloads and schemas",
            state="wait for validation",
            limit=lambda: max_waiting,
            share=lambda: share(max_waiting),
            settings=(f"{max_waiting} in each process", "max_share_per_user"),
        )
        self._lock = FairLock()
        self._process: Process | None = None
        self._is_closed = False

    async def errors(
        self,
        schema: str,
        payload: dict[str, Any],
        user: str = "",
        *,
        lists_all: bool = True,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> list[dict[str, str]]:
        """Return the errors of a payload; only the first one unless `lists_all`.

        Raises `InvalidPayload` if the check takes too long, `ServiceUnavailable` if too many checks wait
        or if others take longer than `wait_seconds`, and `TooManyRequests` beyond the user's share.
        """
        try:
            return await self._run([schema, payload, lists_all], user, wait_seconds)
        except TimeoutError:
            raise InvalidPayload(
                "payload: checking it against the job's schema takes more than "
                f"{self._check_seconds:g} s; the schema refers to itself too often, "
                "or the payload is too large for it"
            ) from None
        except _Crashed:
            raise InvalidPayload(
                "payload: it cannot be checked against the job's schema, because the check needs more than "
                f"{_MAX_MEMORY_BYTES >> 20} MiB of memory; simplify the schema or send a smaller payload"
            ) from None

    async def check_schema(self, schema: str, user: str) -> None:
        """Raise `InvalidSchema` if payloads cannot be validated against a schema, also for its effort.

        Raises `ServiceUnavailable` and `TooManyRequests` as `errors` does.
        """
        try:
            errors = await self._run([schema], user, _WAIT_SECONDS)
        except TimeoutError:
            limit = f"more than {self._check_seconds:g} s"
        except _Crashed:
            limit = f"more than {_MAX_MEMORY_BYTES >> 20} MiB of memory"
        else:
            if errors:
                raise InvalidSchema(errors[0]["message"])
            return
        raise InvalidSchema(
            f"schema: compiling it takes {limit}; use fewer or simpler patterns and references"
        )

    async def _run(self, request: list[Any], user: str, wait_seconds: float) -> list[dict[str, str]]:
        async with self._turn(user, wait_seconds):
            is_used = self.is_running
            line = to_json(request) + b"\n"
            try:
                return await self._answer(line)
            except _Crashed:
                if not is_used:
                    raise
                # What other checks left in its memory must not count.
                return await self._answer(line)

    @asynccontextmanager
    async def _turn(self, user: str, wait_seconds: float) -> AsyncIterator[None]:
        with self._waiting.held(user):
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(wait_seconds):
                        await stack.enter_async_context(self._lock.hold(user))
                except TimeoutError:
                    raise too_busy(f"The validation did not begin within {wait_seconds:g} s") from None
                yield

    async def _answer(self, request: bytes) -> list[dict[str, str]]:
        """Return the errors that the process finds. Raises TimeoutError, or `_Crashed`."""
        first = listing = b""
        try:
            stdin, stdout = await self._start()
            stdin.write(request)
            first = await _read_line(stdout, self._check_seconds)
            listing = await _read_line(stdout, self._listing_seconds)
        except TimeoutError:
            if not first:
                raise
        finally:
            if not listing:
                await self.stop()
        if not first:
            self._raise_if_closed()
            raise _Crashed
        errors: list[dict[str, str]] = from_json(listing or first)
        return errors

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self._process is not None and self._process.returncode is None

    async def _start(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        is_new = not self.is_running
        self._raise_if_closed()
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
        self._raise_if_closed()
        if is_new:
            ready = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    ready = await stdout.readline()
            if ready != _READY:
                raise too_busy("The process that validates payloads did not start")
        return stdin, stdout

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise too_busy("The payload was not validated: the server stops")

    async def close(self) -> None:
        """Stop the process, and start no other one. Return when the check under way has ended."""
        self._is_closed = True
        await self.stop()
        async with self._lock.hold(""):  # a check that was cancelled stops the process too
            return

    async def stop(self) -> None:
        """Kill the process and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read_line(stdout: asyncio.StreamReader, seconds: float) -> bytes:
    """Return a line that comes within `seconds`, also one that came while this process was paused.

    Then the event loop notices the line and the end of the time at once. Raises TimeoutError.
    """
    try:
        async with asyncio.timeout(seconds):
            return await stdout.readline()
    except TimeoutError:
        async with asyncio.timeout(0):
            return await stdout.readline()


def too_busy(reason: str) -> ServiceUnavailable:
    """Return the problem of a payload or a schema that was not checked."""
    return ServiceUnavailable(f"{reason}; retry later", headers={"Retry-After": "5"})


def _serve() -> None:
    """Answer each request on stdin with two lines: the first error alone, then all errors."""
    _write_line(_READY)
    for line in sys.stdin.buffer:
        schema, *check = from_json(line)
        try:
            if check:
                _answer(schema, *check)
            else:
                rules_payloads.check_schema(schema)
                _write_line(b"[]\n[]\n")
        except InvalidSchema as problem:
            _write_line(2 * (to_json([{"pointer": "", "message": str(problem)}]) + b"\n"))


def _answer(schema: str, payload: Any, lists_all: bool) -> None:
    is_valid = rules_payloads.is_valid(schema, payload)
    errors = [] if is_valid else [rules_payloads.first_error(schema, payload)]
    _write_line(to_json(errors) + b"\n")
    if errors and lists_all:
        errors = rules_payloads.list_errors(schema, payload)
    _write_line(to_json(errors) + b"\n")


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
