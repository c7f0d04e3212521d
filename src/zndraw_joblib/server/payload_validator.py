"""Checks payloads in a process of its own: a schema can be made so that a check takes for ever."""

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

_SECONDS = 2.0
_LISTING_SECONDS = 0.5
_START_SECONDS = 30.0
_MAX_WAITING = 50
_MAX_ANSWER_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 1 << 30
_READY = b"ready\n"


class PayloadValidator:
    """Checks one payload after another; a check that takes too long is given up, and its process with it."""

    def __init__(self) -> None:
        self._desks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = WeakKeyDictionary()

    async def check(self, schema: str, payload: dict[str, Any]) -> None:
        """Raise `InvalidPayload` where a payload does not fit, or that cannot be told within two seconds.

        Where to list all its faults takes more than half a second, the first is told. Raises
        `ServiceUnavailable` when too many wait for their check.
        """
        desk = self._desks.setdefault(asyncio.get_running_loop(), _Desk())
        payloads.raise_if_invalid(await desk.faults(to_json([schema, payload]) + b"\n"))

    async def close(self) -> None:
        """Stop the process, if there is one."""
        desk = self._desks.pop(asyncio.get_running_loop(), None)
        if desk is not None:
            await desk.stop()


class _Desk:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: Process | None = None

    async def faults(self, question: bytes) -> list[dict[str, str]]:
        if self._waiting >= _MAX_WAITING:
            raise ServiceUnavailable("Too many payloads wait for their check", headers={"Retry-After": "5"})
        self._waiting += 1
        try:
            async with self._turn:
                return await self._ask(question)
        finally:
            self._waiting -= 1

    async def _ask(self, question: bytes) -> list[dict[str, str]]:
        questions, answers = await self._running()
        first = answer = b""
        try:
            async with asyncio.timeout(_SECONDS):
                questions.write(question)
                first = await answers.readline()
            async with asyncio.timeout(_LISTING_SECONDS):
                answer = await answers.readline()
        except TimeoutError:
            if not first:
                raise InvalidPayload(
                    f"payload: to check it against the job's schema takes more than {_SECONDS:g} s; "
                    "the schema refers to itself too often, or the payload is too large for it"
                ) from None
        finally:
            if not answer:
                await self.stop()
        if not first:
            raise InvalidPayload("payload: it cannot be checked against the job's schema")
        found: list[dict[str, str]] = from_json(answer or first)
        return found

    async def _running(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        is_new = self._process is None or self._process.returncode is not None
        if self._process is None or is_new:
            # A session of its own: Ctrl-C is for the server, which stops this one in time.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__),
                stdin=PIPE,
                stdout=PIPE,
                limit=_MAX_ANSWER_BYTES,
                start_new_session=True,
            )
        questions = cast("asyncio.StreamWriter", self._process.stdin)
        answers = cast("asyncio.StreamReader", self._process.stdout)
        if is_new:
            async with asyncio.timeout(_START_SECONDS):
                await answers.readline()
        return questions, answers

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _serve() -> None:
    _say(_READY)
    for line in sys.stdin.buffer:
        schema, payload = from_json(line)
        fits = payloads.is_valid(schema, payload)
        _say(to_json([] if fits else [payloads.first_error(schema, payload)]) + b"\n")
        _say(to_json([] if fits else payloads.list_errors(schema, payload)) + b"\n")


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _bound_memory() -> None:
    """Die rather than take the memory of others: faults without number are all held at once."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))


if __name__ == "__main__":
    _bound_memory()
    _serve()
