"""Validate payloads before the transaction; in a child process if a check is expensive or unbounded."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from zndraw_joblib.server.queue import rules_payloads
from zndraw_joblib.server.queue.rules_tasks import Submission
from zndraw_joblib.server.runtime.validator_process import ValidatorProcess, too_busy
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.problems import InvalidPayload, ServiceUnavailable, TooManyRequests

Result = TypeVar("Result")


class LoopBudget:
    """Runs synchronous functions on one event loop, for about `seconds` in each of its cycles.

    Within the budget a function runs at once. When the budget is spent, functions wait for the next cycles,
    in order.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._is_started = False
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, in this cycle of the event loop or in a later one."""
        if not self._waiting and self._has_budget():
            return self._run(work)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        return await future

    def _has_budget(self) -> bool:
        return not self._is_started or self._spent < self._seconds

    def _run(self, work: Callable[[], Result]) -> Result:
        if not self._is_started:
            self._is_started, self._spent = True, 0.0
            asyncio.get_running_loop().call_soon(self._next_cycle)
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._spent += time.perf_counter() - start

    def _next_cycle(self) -> None:
        self._is_started = False
        while self._waiting and self._has_budget():
            work, future = self._waiting.popleft()
            if future.done():  # cancelled
                continue
            try:
                future.set_result(self._run(work))
            except BaseException as error:  # a panic of a Rust library is no Exception
                future.set_exception(error)
                if isinstance(error, SystemExit | KeyboardInterrupt):
                    raise


_UNKNOWN = RuntimeError("the item was not put")


@dataclass(slots=True)
class _Check:
    """An item, the schema against which its payload is validated, and the problem of the payload."""

    item: Submission
    schema: str | None
    fault: Exception | None = None


# How long the quick checks may take in one cycle of the event loop.
_LOOP_SECONDS = 0.002
# How long a listing of all errors may wait for its process; without it, the first error is sent.
_LISTING_WAIT_SECONDS = 1.0
_MAX_SCHEMA_CHARACTERS = 64_000_000
_MAX_CHECKED_SCHEMAS = 10_000


class PayloadValidator:
    """Validates payloads on the event loop within a budget, and expensive ones in child processes.

    Each event loop has two processes: one for checks of bounded effort, so that they do not wait for the
    others. A check may take `check_seconds`; listing all its errors may take `listing_seconds` more. After
    `request_seconds`, no other check of the same request begins. At most `max_waiting` checks of unbounded
    effort wait for their process, and `max_bounded` of the others; `share(limit)` of them for one user.
    """

    def __init__(
        self,
        *,
        check_seconds: float = 2.0,
        listing_seconds: float = 0.5,
        request_seconds: float = 10.0,
        max_waiting: int = 50,
        max_bounded: int = 1000,
        share: Callable[[int], int] = lambda limit: limit,
    ) -> None:
        self._limits = check_seconds, listing_seconds, max_waiting, max_bounded, share
        self._request_seconds = request_seconds
        self._schemas: LRUCache[JobName, str] = LRUCache(_MAX_SCHEMA_CHARACTERS, getsizeof=len)
        self._checked_schemas: LRUCache[bytes, None] = LRUCache(_MAX_CHECKED_SCHEMAS)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopValidator] = WeakKeyDictionary()

    async def submit(
        self,
        items: Sequence[Submission],
        put: Callable[[Sequence[Submission]], Awaitable[Sequence[Result]]],
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
            put_results = await put([checks[index].item for index in put_again])
            outdated = []
            for index, result in zip(put_again, put_results, strict=True):
                results[index] = result
                check = checks[index]
                if not isinstance(result, rules_payloads.UnvalidatedPayload):
                    continue
                if check.fault is not None and result.schema == check.schema:
                    results[index] = check.fault
                else:
                    check.schema = self._schemas[check.item.job] = result.schema
                    outdated.append(index)
            if not is_atomic:
                put_again = outdated
        return results

    async def submit_one(self, item: Submission, put: Callable[[Submission], Awaitable[Result]]) -> Result:
        """Return the result of `put(item)`, like `submit`. Raises its problem, or that of the payload."""
        check = _Check(item, self._schemas.get(item.job) if item.validate_payload else None)
        while True:
            if check.schema is not None:
                # Nearly all payloads: a job's schema is looked up once.
                if rules_payloads.is_surely_valid(check.schema, item.payload):
                    check.fault, item.validated_schema = None, check.schema
                else:
                    await self._validate(check)
            try:
                return await put(item)
            except rules_payloads.UnvalidatedPayload as current:
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
                check.fault = too_busy(
                    f"payload: it was not validated: other payloads of the same request took {limit}; "
                    "send fewer tasks in one request"
                )
                check.item.validated_schema = None
        return until - time.monotonic()

    async def _validate(self, check: _Check) -> None:
        """Validate a payload against `check.schema`, which is not None."""
        schema = cast("str", check.schema)
        try:
            fault = await self.fault(schema, check.item.payload, check.item.caller.id)
            check.fault = fault and rules_payloads.without_places(fault, check.item.filled)
        except (ServiceUnavailable, TooManyRequests) as problem:
            check.fault = problem
        check.item.validated_schema = None if check.fault else schema

    async def fault(self, schema: str, payload: dict[str, Any], user: str = "") -> InvalidPayload | None:
        """Return the problem of a payload that does not match a schema, given as JSON.

        A check that takes too long is a problem too. The problem lists all errors, or the first one if
        listing all takes too long. Raises `ServiceUnavailable` when too many checks wait, and
        `TooManyRequests` when these are this user's.
        """
        if rules_payloads.is_surely_valid(schema, payload):
            return None
        try:
            rules_payloads.raise_if_invalid(await self._of_loop().errors(schema, payload, user))
        except InvalidPayload as problem:
            return problem
        return None

    async def check_schema(self, schema: str, user: str) -> None:
        """Raise `InvalidSchema` if payloads cannot be validated against a schema, given as JSON.

        Raises `ServiceUnavailable` when too many checks wait, and `TooManyRequests` beyond the user's share.
        """
        digest = hashlib.sha256(schema.encode()).digest()
        if digest not in self._checked_schemas:
            await self._of_loop().check_schema(schema, user)
            self._checked_schemas[digest] = None

    def _of_loop(self) -> "LoopValidator":
        loop = asyncio.get_running_loop()
        validator = self._loops.get(loop)
        if validator is None:
            validator = self._loops[loop] = LoopValidator(*self._limits)
        return validator

    async def close(self) -> None:
        """Stop the processes of the running event loop, if there are any."""
        validator = self._loops.pop(asyncio.get_running_loop(), None)
        if validator is not None:
            await validator.close()


class LoopValidator:
    """The budget and the processes of one event loop."""

    def __init__(
        self,
        check_seconds: float,
        listing_seconds: float,
        max_waiting: int,
        max_bounded: int,
        share: Callable[[int], int],
    ) -> None:
        self._budget = LoopBudget(_LOOP_SECONDS)
        self._bounded = ValidatorProcess(check_seconds, listing_seconds, max_bounded, share)
        self._unbounded = ValidatorProcess(check_seconds, listing_seconds, max_waiting, share)

    async def errors(self, schema: str, payload: dict[str, Any], user: str) -> list[dict[str, str]]:
        """Return the errors of a payload. Raises `InvalidPayload` if the check takes too long."""
        check = await self._budget.run(partial(rules_payloads.check_quickly, schema, payload))
        if check.errors is not None:
            return check.errors
        if check.effort > rules_payloads.MAX_EFFORT:
            return await self._unbounded.errors(schema, payload, user)
        lists_all = check.listing <= rules_payloads.MAX_LISTING
        errors = await self._bounded.errors(schema, payload, user, lists_all=lists_all)
        if errors and not lists_all:
            with suppress(ServiceUnavailable, TooManyRequests):
                return await self._unbounded.errors(schema, payload, user, wait_seconds=_LISTING_WAIT_SECONDS)
        return errors

    async def check_schema(self, schema: str, user: str) -> None:
        """Raise `InvalidSchema` if payloads cannot be validated against a schema."""
        effort = rules_payloads.estimate_effort(schema)
        if effort.is_quick:
            await self._budget.run(partial(rules_payloads.check_schema, schema))
        else:
            is_bounded = effort.of(len(schema)) <= rules_payloads.MAX_EFFORT
            await (self._bounded if is_bounded else self._unbounded).check_schema(schema, user)

    async def close(self) -> None:
        """Stop the processes."""
        await self._bounded.close()
        await self._unbounded.close()
