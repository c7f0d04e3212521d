"""Extensions that run on an event loop, or in a process of their own."""

import asyncio
import os
import signal
import stat
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from endings import ENDINGS

from zndraw_joblib.jobs.extensions import Category, Extension


class Meet(Extension):
    """Waits on the event loop until as many as `others` run at once."""

    category: ClassVar[Category] = Category.ANALYSIS
    others: int = 1
    running: ClassVar[int] = 0
    full: ClassVar[asyncio.Event]

    async def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the name of the thread."""
        cls = type(self)
        if cls.running == 0:
            cls.full = asyncio.Event()
        cls.running += 1
        if cls.running == self.others:
            cls.full.set()
        await asyncio.wait_for(cls.full.wait(), 30)
        return threading.current_thread().name


class EndLater(Extension):
    """Ends as its payload says, after a turn of the event loop."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str = "well"

    async def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return or raise."""
        await asyncio.sleep(0)
        if self.how == "bytes":
            return b"well"
        return "well" if self.how == "well" else ENDINGS[self.how][0]()


class EndInSubtask(Extension):
    """Starts another task of the event loop, which ends the program."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str

    async def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the name of the thread, unless the error of the other task arrives here."""
        if self.how == "gather":
            await asyncio.gather(_exit())
        elif self.how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(_exit())
        else:
            await asyncio.wait([asyncio.create_task(_exit())])
        return threading.current_thread().name


async def _exit() -> None:
    raise SystemExit(3)


def _write_to_worker(content: bytes) -> None:
    """Write into the connection to the worker, as native code may that mixes up its descriptors."""
    # A descriptor has the number that it has in the process that passed it.
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, content)


def _wait_in(folder: Path) -> None:
    (folder / "running").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        time.sleep(0.01)


class Process(Extension):
    """Returns the id of its process, or ends it."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str = "well"
    leaves_helper: bool = False
    padding: str = ""

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return, raise, or end the process."""
        if self.leaves_helper and os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "sleep":
            time.sleep(60)
        if self.how == "garble":
            _write_to_worker(b"?" * 8)
        if self.how == "kill while it sends":
            # The length of a message and its beginning.
            _write_to_worker(struct.pack("!Q", 900_000) + bytes(1000))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "interrupt program":
            with subprocess.Popen(["sleep", "60"]) as program:
                program.send_signal(signal.SIGINT)
                return program.wait(30)
        if self.how.startswith("/"):
            _wait_in(Path(self.how))
            return "waited"
        return os.getpid() if self.how == "well" else ENDINGS[self.how][0]()


class ProcessLater(Extension):
    """A coroutine in a process of its own."""

    category: ClassVar[Category] = Category.ANALYSIS

    async def run(self, vis: Any, **kwargs: Any) -> int:
        """Return the id of the process."""
        await asyncio.sleep(0)
        return os.getpid()
