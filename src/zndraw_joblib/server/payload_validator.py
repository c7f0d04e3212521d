"""Validate payloads before the transaction; in a child process if a check is expensive or unbounded."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from cachetools import LRUCache
from pydantic_core import from_json, to_json

if sys.platform != "win32":
    import resource

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import InvalidPayload, ServiceUnavailable
from zndraw_joblib.server.loop_budget import LoopBudget
from zndraw_joblib.server.service import payloads

if TYPE_CHECKING:
    # The child process runs this module, and must not load the database modules.
    from zndraw_joblib.server.service.tasks import Submission

Result = TypeVar("Result")

_UNKNOWN = RuntimeError("the item was not put")


@dataclass(slots=True)
class _Check:
    """An item, the schema against which its payload is validated, and the problem of the payload."""

    item: "Submission"
    schema: str | None
    fault: Exception | None = None


# How long the quick checks may take in one cycle of the event loop.
_LOOP_SECONDS = 0.002
_START_SECONDS = 30.0
# How long a check may wait for its process, and a listing of all errors, without which the first one is sent.
_WAIT_SECONDS, _LISTING_WAIT_SECONDS = 10.0, 1.0
_MAX_SCHEMA_CHARACTERS = 64_000_000
_MAX_LINE_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 1 << 30
_READY = b"ready\n"


class PayloadValidator:
    """Validates payloads on the event loop within a budget, and expensive ones in child processes.

    Each event loop has two processes: one for checks of bounded effort, so that they do not wait for the
    others. A check may take `check_seconds`; listing all its errors may take `listing_seconds` more. After
    `request_seconds`, no other check of the same request begins. At most `max_waiting` checks of unbounded
    effort wait for their process, and `max_bounded` of the others.
    """

    def __init__(
        self,
        *,
        check_seconds: float = 2.0,
        listing_seconds: float = 0.5,
        request_seconds: float = 10.0,
        max_waiting: int = 50,
        max_bounded: int = 1000,
    ) -> None:
        self._limits = check_seconds, listing_seconds, max_waiting, max_bounded
        self._request_seconds = request_seconds
        self._schemas: LRUCache[JobName, str] = LRUCache(_MAX_SCHEMA_CHARACTERS, getsizeof=len)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopValidator] = WeakKeyDictionary()

    async def submit(
        self,
        items: "Sequence[Submission]",
        put: "Callable[[Sequence[Submission]], Awaitable[Sequence[Result]]]",
        *,
        is_atomic: bool = False,
    ) -> list[Result | Exception]:
        """Return the results of `put(items)` for items whose payloads were validated.

        A payload is validated against the last known schema of its job. The result for one that does not
        match is `InvalidPayload`, and for one whose check did not begin in time `ServiceUnavailable`. Items
        whose job has another schema by then are put again; with `is_atomic` all of them.
        """
        results: list[Result | Exception] = [_UNKNOWN] * len(items)
        schemas = {job: self._schemas.get(job) for job in {item.job for item in items}}
        checks = [_Check(item, schemas[item.job] if item.validate_payload else None) for item in items]
        put_again = outdated = list(range(len(items)))
        seconds = self._request_seconds
        while outdated:
            seconds = await self._validate_all([checks[index] for index in outdated], seconds)
            done = await put([checks[index].item for index in put_again])
            outdated = []
            for index, result in zip(put_again, done, strict=True):
                results[index] = result
                check = checks[index]
                if not isinstance(result, payloads.UnvalidatedPayload):
                    continue
                if check.fault is not None and result.schema == check.schema:
                    results[index] = check.fault
                else:
                    check.schema = self._schemas[check.item.job] = result.schema
                    outdated.append(index)
            if not is_atomic:
                put_again = outdated
        return results

    async def submit_one(
        self, item: "Submission", put: "Callable[[Submission], Awaitable[Result]]"
    ) -> Result:
        """Return the result of `put(item)`, like `submit`. Raises its problem, or that of the payload."""
        check = _Check(item, self._schemas.get(item.job) if item.validate_payload else None)
        while True:
            if check.schema is not None:
                await self._validate(check)
            try:
                return await put(item)
            except payloads.UnvalidatedPayload as current:
                if check.fault is not None and current.schema == check.schema:
                    raise check.fault from None
                check.schema = self._schemas[item.job] = current.schema

    async def _validate_all(self, checks: Sequence[_Check], seconds: float) -> float:
        """Validate payloads; begin no check after `seconds`. Return how many seconds are left."""
        until = time.monotonic() + seconds
        for check in checks:
            if check.schema is None:
                continue
            if time.monotonic() < until:
                await self._validate(check)
            else:
                limit = f"{self._request_seconds:g} s"
                check.fault = _too_busy(
                    f"payload: it was not validated: other payloads of the same request took {limit}; "
                    "send fewer tasks in one request"
                )
                check.item.validated_schema = None
        return until - time.monotonic()

    async def _validate(self, check: _Check) -> None:
        """Validate a payload against `check.schema`, which is not None."""
        schema = cast("str", check.schema)
        try:
            check.fault = await self.fault(schema, check.item.payload)
        except ServiceUnavailable as problem:
            check.fault = problem
        check.item.validated_schema = None if check.fault else schema

    async def fault(self, schema: str, payload: dict[str, Any]) -> InvalidPayload | None:
        """Return the problem of a payload that does not match a schema, given as JSON.

        A check that takes too long is a problem too. The problem lists all errors, or the first one if
        listing all takes too long. Raises `ServiceUnavailable` when too many checks wait.
        """
        if payloads.estimate_effort(schema) <= 1 and payloads.is_valid(schema, payload):
            return None  # it took less time than parsing the payload
        loop = asyncio.get_running_loop()
        validator = self._loops.get(loop)
        if validator is None:
            validator = self._loops[loop] = LoopValidator(*self._limits)
        try:
            payloads.raise_if_invalid(await validator.errors(schema, payload))
        except InvalidPayload as problem:
            return problem
        return None

    async def close(self) -> None:
        """Stop the processes of the running event loop, if there are any."""
        validator = self._loops.pop(asyncio.get_running_loop(), None)
        if validator is not None:
            await validator.close()


class LoopValidator:
    """The budget and the processes of one event loop."""

    def __init__(
        self, check_seconds: float, listing_seconds: float, max_waiting: int, max_bounded: int
    ) -> None:
        self._budget = LoopBudget(_LOOP_SECONDS)
        self._bounded = ValidatorProcess(check_seconds, listing_seconds, max_bounded)
        self._unbounded = ValidatorProcess(check_seconds, listing_seconds, max_waiting)

    async def errors(self, schema: str, payload: dict[str, Any]) -> list[dict[str, str]]:
        """Return the errors of a payload. Raises `InvalidPayload` if the check takes too long."""
        check = await self._budget.run(partial(payloads.check_quickly, schema, payload))
        if check.errors is not None:
            return check.errors
        if check.effort > payloads.MAX_EFFORT:
            return await self._unbounded.errors(schema, payload)
        lists_all = check.listing <= payloads.MAX_LISTING
        errors = await self._bounded.errors(schema, payload, lists_all=lists_all)
        if errors and not lists_all:
            with suppress(ServiceUnavailable):
                return await self._unbounded.errors(schema, payload, wait_seconds=_LISTING_WAIT_SECONDS)
        return errors

    async def close(self) -> None:
        """Stop the processes."""
        await self._bounded.close()
        await self._unbounded.close()


class ValidatorProcess:
    """A child process that checks one payload at a time; a new one replaces it after a timeout or a crash."""

    def __init__(self, check_seconds: float, listing_seconds: float, max_waiting: int) -> None:
        self._check_seconds = check_seconds
        self._listing_seconds = listing_seconds
        self._max_waiting = max_waiting
        self._waiting = 0
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._is_closed = False

    async def errors(
        self,
        schema: str,
        payload: dict[str, Any],
        *,
        lists_all: bool = True,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> list[dict[str, str]]:
        """Return the errors of a payload; only the first one unless `lists_all`.

        Raises `InvalidPayload` if the check takes too long, and `ServiceUnavailable` if too many checks
        wait or if others take longer than `wait_seconds`.
        """
        async with self._turn(wait_seconds):
            return await self._check(to_json([schema, payload, lists_all]) + b"\n")

    @asynccontextmanager
    async def _turn(self, wait_seconds: float) -> AsyncIterator[None]:
        if self._waiting >= self._max_waiting:
            raise _too_busy(f"{self._waiting} payloads already wait for validation")
        self._waiting += 1
        try:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._lock.acquire()
            except TimeoutError:
                reason = f"The payload was not validated within {wait_seconds:g} s: other payloads were first"
                raise _too_busy(reason) from None
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._waiting -= 1

    async def _check(self, request: bytes) -> list[dict[str, str]]:
        first = listing = b""
        try:
            stdin, stdout = await self._start()
            async with asyncio.timeout(self._check_seconds):
                stdin.write(request)
                first = await stdout.readline()
            async with asyncio.timeout(self._listing_seconds):
                listing = await stdout.readline()
        except TimeoutError:
            if not first:
                raise InvalidPayload(
                    "payload: checking it against the job's schema takes more than "
                    f"{self._check_seconds:g} s; the schema refers to itself too often, "
                    "or the payload is too large for it"
                ) from None
        finally:
            if not listing:
                await self.stop()
        if not first:
            self._raise_if_closed()
            raise InvalidPayload(
                "payload: it cannot be checked against the job's schema, because the check needs more than "
                f"{_MAX_MEMORY_BYTES >> 20} MiB of memory; simplify the schema or send a smaller payload"
            )
        errors: list[dict[str, str]] = from_json(listing or first)
        return errors

    async def _start(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        is_new = self._process is None or self._process.returncode is not None
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
                raise _too_busy("The process that validates payloads did not start")
        return stdin, stdout

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise _too_busy("The payload was not validated: the server stops")

    async def close(self) -> None:
        """Stop the process, and start no other one. Return when the check under way has ended."""
        self._is_closed = True
        await self.stop()
        async with self._lock:  # a check that was cancelled stops the process too
            return

    async def stop(self) -> None:
        """Kill the process and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _too_busy(reason: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"{reason}; retry later", headers={"Retry-After": "5"})


def _serve() -> None:
    """Answer each request on stdin with two lines: the first error alone, then all errors."""
    _write_line(_READY)
    for line in sys.stdin.buffer:
        schema, payload, lists_all = from_json(line)
        is_valid = payloads.is_valid(schema, payload)
        errors = [] if is_valid else [payloads.first_error(schema, payload)]
        _write_line(to_json(errors) + b"\n")
        if errors and lists_all:
            errors = payloads.list_errors(schema, payload)
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
