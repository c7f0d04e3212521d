"""The loop that handles ends for which tasks wait. Each server runs it."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from cachetools import LRUCache
from pydantic_core import from_json

from zndraw_joblib.jobs.logs import ExponentialBackoff, log_failed_work
from zndraw_joblib.server.process.ports import SUCCESSORS_KEY
from zndraw_joblib.server.queue import rules_waves, sql_successors
from zndraw_joblib.server.queue.rules_waves import MAX_TASKS, Handled, Rules, Unchecked
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import ServiceUnavailable, TooManyRequests

logger = logging.getLogger(__name__)

_POLL_SECONDS, _RETRY_SECONDS = 5.0, 1.0
# Seconds between two searches of all edges for ends without a wave; edges of one read, and reads of a search.
_SEARCH_SECONDS, _SEARCHED_AT_ONCE, _MAX_SEARCHES = 60.0, 1000, 100
# On SQLite a pause between two transactions lets others write.
_MAX_PAUSE_SECONDS = 0.05
# The most payloads that are validated at the same time, and of one job; the most whose results are kept.
_MAX_CHECKS, _MAX_CHECKS_OF_JOB, _MAX_CHECKED = 8, 4, 100
_MAX_PASSED = 1000
_FIRST = (-(2**62), 0)


class Successors:
    """Handles ends for which tasks wait, whenever a transaction has added some, and looks every 5 s.

    An end may have been added by a server that was killed before it could wake the others. Each minute it
    searches for ends that no transaction has added, as those that a server of an older version writes.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._checks = _Checks(runtime, self._end_wait)
        self._next_room = ""
        # The tasks behind which to look, by their predecessors: those before could not be released.
        self._passed: LRUCache[int, int] = LRUCache(_MAX_PASSED)
        self._had_ready = False
        self._searched_at = -_SEARCH_SECONDS
        self._searched: tuple[int, int] = _FIRST
        self._blocked = ExponentialBackoff(first=0.005, longest=0.5, jitter=0.5)
        self._failing = ExponentialBackoff(first=_RETRY_SECONDS, longest=30.0, jitter=0.5)
        runtime.waiters.subscribe(SUCCESSORS_KEY, self._wake)

    def _wake(self, _: str = "") -> None:
        loop = self._loop
        if loop is not None and not self._woken.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    def _end_wait(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Handle ends until cancelled."""
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._run()
        finally:
            await self._checks.cancel()

    async def _run(self) -> None:
        is_woken = False
        while True:
            self._woken.clear()
            try:
                # After a wake-up there are ends, if no other server has handled them meanwhile.
                if is_woken or await self._runtime.database.read_short(sql_successors.has_waves):
                    await self.handle_all()
                elif time.monotonic() - self._searched_at >= _SEARCH_SECONDS:
                    self._searched_at = time.monotonic()
                    if await self.add_unrecorded():
                        continue
            except Exception as error:
                log_failed_work(logger, error, "Tasks that wait for others wait longer, and are tried again")
                await self._handle_others()
                await asyncio.sleep(self._failing.next())
                continue
            self._failing.reset()
            is_woken = await self._wait(_POLL_SECONDS)

    async def _wait(self, seconds: float) -> bool:
        """Wait until a transaction has added an end or a payload was validated, at most so long.

        Return whether one has.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        return self._woken.is_set()

    async def handle_all(self) -> None:
        """Handle all ends."""
        while True:
            started = time.monotonic()
            self._woken.clear()
            handled = await self._handle()
            self._checks.start(handled.unchecked)
            if handled.is_blocked:
                if not self._checks.has_ready:
                    await self._wait(self._blocked.next())
                continue
            self._blocked.reset()
            if not handled.may_be_more:
                return
            await asyncio.sleep(min(_MAX_PAUSE_SECONDS, (time.monotonic() - started) / 2))

    async def add_unrecorded(self) -> int:
        """Add the ends for which tasks wait and that no transaction has added; return how many."""
        sources, read = dict[int, bool](), self._runtime.database.read_short
        for _ in range(_MAX_SEARCHES):
            ended, last = await read(sql_successors.unrecorded, self._searched, _SEARCHED_AT_ONCE)
            sources |= ended
            self._searched = last or _FIRST
            if last is None:
                break
        if number := sum(sources.values()):
            logger.warning(
                "Found %d ends of tasks and groups that no server has recorded for successors", number
            )
        if sources:
            await self._runtime.write(sql_successors.add_waves, sources)
        return len(sources)

    async def _handle(self, only: int | None = None) -> Handled:
        runtime, checks = self._runtime, self._checks
        # In turn with those behind, which do not wait until all payloads in front were validated.
        ready = {} if self._had_ready else checks.take_ready()
        self._had_ready = bool(ready)
        rules = Rules(
            validate=runtime.settings.validate_payload,
            checked=dict(checks.errors),
            busy=checks.jobs(),
            only=only,
            first_room=self._next_room,
            passed=dict(self._passed),
            ready=ready,
        )
        async with runtime.events.room(MAX_TASKS):
            handled = await runtime.write(rules_waves.handle, rules)
        self._next_room = handled.next_room
        begun = set(ready.values())
        self._passed.update({one: seq for one, seq in handled.passed.items() if one not in begun})
        for source in [source for source, seq in self._passed.items() if not seq]:
            del self._passed[source]
        return handled

    async def _handle_others(self) -> None:
        """Handle each end by itself, after one of them has failed: it does not stop the others."""
        after, read = 0, self._runtime.database.read
        # What fails here too, such as a read, was logged before.
        with suppress(Exception):
            last = await read(sql_successors.last_wave_number)
            while numbers := await read(sql_successors.wave_numbers, after, last, MAX_TASKS):
                for after in numbers:
                    try:
                        await self._handle(only=after)
                    except ServiceUnavailable:
                        raise
                    except Exception as error:
                        log_failed_work(logger, error, f"What waits for an end waits on (wave={after})")


class _Checks:
    """Validates payloads with results beside the loop, each in a process of its own; each may take seconds.

    `errors` are those of payloads that were validated, by their digests.
    """

    def __init__(self, runtime: Runtime, on_end: Callable[[], None]) -> None:
        self._runtime, self._on_end = runtime, on_end
        self.errors: LRUCache[bytes, list[dict[str, str]]] = LRUCache(_MAX_CHECKED)
        # The tasks of these payloads, each with a predecessor. Whoever comes to them only in turn, behind all
        # others of a long fan, no longer finds their errors.
        self._ready: LRUCache[int, int] = LRUCache(_MAX_CHECKED)
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._jobs: Counter[UUID] = Counter()

    @property
    def has_ready(self) -> bool:
        """Whether payloads were validated since the last `take_ready`."""
        return bool(self._ready)

    def take_ready(self) -> dict[int, int]:
        """Return the tasks whose payloads were validated since the last call, each with a predecessor."""
        ready = dict(self._ready)
        self._ready.clear()
        return ready

    def jobs(self) -> frozenset[UUID]:
        """Return the jobs of payloads that are being validated."""
        return frozenset(self._jobs)

    def start(self, items: Sequence[Unchecked]) -> None:
        """Validate some of these payloads; the others are for a later call."""
        for item in items:
            is_free = len(self._tasks) < _MAX_CHECKS and self._jobs[item.job_id] < _MAX_CHECKS_OF_JOB
            if is_free and item.digest not in self._tasks:
                self._jobs[item.job_id] += 1
                self._tasks[item.digest] = asyncio.create_task(self._check(item))
        self._jobs = +self._jobs

    async def cancel(self) -> None:
        """End all validations."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._jobs.clear()

    async def _check(self, item: Unchecked) -> None:
        try:
            fault = await self._runtime.payload_validator.fault(
                item.schema, from_json(item.payload), item.user
            )
            errors = [] if fault is None else (fault.problem.model_extra or {}).get("errors", [])
            if fault is not None and not errors:
                errors = [{"pointer": "", "message": str(fault)}]
            self.errors[item.digest], self._ready[item.task_seq] = errors, item.source
        except (ServiceUnavailable, TooManyRequests):
            await asyncio.sleep(_RETRY_SECONDS)
        except Exception as error:
            log_failed_work(logger, error, f"A payload is validated later (task={item.task_seq})")
            await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._tasks.pop(item.digest, None)
            self._jobs[item.job_id] -= 1
            self._jobs = +self._jobs
            self._on_end()
