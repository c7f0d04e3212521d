"""Several server processes on one socket: one that dies is replaced."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from zndraw_joblib.cli.logs import Speech
from zndraw_joblib.cli.operator import process as child
from zndraw_joblib.cli.operator.process import READY, STOP_SECONDS, Plan
from zndraw_joblib.cli.refusal import Refusal
from zndraw_joblib.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_SETTLED_SECONDS = 10.0
_MOST_PAUSE_SECONDS = 30.0
# -P: a module in the working directory must not take the place of one of ours.
_COMMAND = (sys.executable, "-P", "-m", child.__name__)


def serve(
    settings: ServerSettings, listener: socket.socket, speech: Speech, ready: Callable[[], object]
) -> None:
    """Serve on a socket from `settings.workers` processes until SIGINT or SIGTERM.

    Call `ready` once all answer requests. The first signal stops them as it stops one process, a second
    one ends them at once. Raises `Refusal` where one of them cannot begin. Later, one that dies is
    replaced at once, and after 1 s, doubling to 30 s, while they follow each other fast.
    """
    asyncio.run(_Crew(settings, listener, speech, ready).run())


class _Crew:
    """The processes of one server."""

    def __init__(
        self,
        settings: ServerSettings,
        listener: socket.socket,
        speech: Speech,
        ready: Callable[[], object],
    ) -> None:
        self._count = settings.workers
        self._line = Plan.of(settings, listener, speech).model_dump_json().encode() + b"\n"
        self._listener = listener
        self._tell = ready
        self._processes: set[Process] = set()
        self._ready = 0
        self._is_up = False
        self._stopping = asyncio.Event()
        self._fault: str | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear)
        await asyncio.gather(*(self._keep() for _ in range(self._count)))
        if self._fault is not None:
            raise Refusal(self._fault)

    def _hear(self) -> None:
        if self._stopping.is_set():
            self._kill()
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        # The children have it too, and close it now: who comes from here on is refused at once.
        self._listener.close()
        for process in self._processes:
            _send(process, signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._kill)

    def _kill(self) -> None:
        for process in self._processes:
            _send(process, signal.SIGKILL)

    async def _keep(self) -> None:
        """Keep one place filled until all stop."""
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            fault = await self._run_one()
            if self._stopping.is_set():
                return
            if not self._is_up:
                self._fault = fault
                self._stop()
                return
            crashes = 1 if time.monotonic() - began > _SETTLED_SECONDS else crashes + 1
            pause = 0.0 if crashes == 1 else min(_MOST_PAUSE_SECONDS, 2.0 ** (crashes - 2))
            logger.error("%s; another one starts in %g s", fault, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run_one(self) -> str:
        """Run one process to its end; return how it ended."""
        # A session of its own: Ctrl-C reaches us, and we stop the others.
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, stdin=PIPE, stdout=PIPE, pass_fds=[self._listener.fileno()], start_new_session=True
        )
        self._processes.add(process)
        fault = ""
        try:
            if self._stopping.is_set():
                _send(process, signal.SIGTERM)
            elif (answer := await self._begin(process)) == READY:
                self._count_ready()
            else:
                fault = answer
            await process.wait()
        finally:
            self._processes.discard(process)
        return fault or f"The server process {process.pid} ended ({process.returncode})"

    async def _begin(self, process: Process) -> str:
        """Tell a process what to do; return its answer, which is empty if there is none."""
        cast("asyncio.StreamWriter", process.stdin).write(self._line)
        answers = cast("asyncio.StreamReader", process.stdout)
        try:
            async with asyncio.timeout(_START_SECONDS):
                return (await answers.readline()).decode(errors="replace").strip()
        except TimeoutError:
            _send(process, signal.SIGKILL)
            return f"The server process {process.pid} was not ready within {_START_SECONDS:g} s"

    def _count_ready(self) -> None:
        self._ready += 1
        if self._ready == self._count and not self._stopping.is_set():
            self._is_up = True
            self._tell()


def _send(process: Process, number: signal.Signals) -> None:
    # Not by `Process.send_signal`, which looks whether it lives, and so takes its exit code from asyncio.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
