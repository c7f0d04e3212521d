"""What the replicas of a server tell each other: whom to wake, and what to send to their sockets."""

import asyncio
import json
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from zndraw_joblib.server.ports import Line, OpenConnection, Wake

logger = logging.getLogger(__name__)

_HELLO_SECONDS = 10.0
_FORGET_SECONDS = 25.0
_SEND_SECONDS = 5.0
# Between two messages: what comes up meanwhile goes with the second.
_PAUSE_SECONDS = 0.002
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_MAX_KEYS = 2_000
_MAX_POSTS = 10_000
_MAX_FRAGMENTED = 64
_HEAD_SIZE = 64


class PubSub:
    """Carries hints between replicas, over a line that may break: then it is opened again.

    What is handed over while a message is under way goes with the next one, so a busy replica sends few.
    As long as no other replica is there, nothing is sent but a greeting now and then. All of it is bounded:
    where there are too many waiters to name, the others look for themselves, and so do we after each break.
    """

    def __init__(self, wake: Callable[[str, int | None], Any], look: Callable[[], Awaitable[None]]) -> None:
        self._wake = wake
        self._look = look
        self._name = uuid4().hex[:12]
        self._number = 0
        self._peers: dict[str, float] = {}
        self._wakes: dict[str, int | None] = {}
        self._posts: deque[str] = deque(maxlen=_MAX_POSTS)
        self._must_look = False
        self._fragments: OrderedDict[str, list[str]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Event | None = None
        self._looking: asyncio.Task[None] | None = None
        self.is_open = self._is_closing = self._is_over = False
        self.receive: Callable[[str], None] = _ignore

    @property
    def has_peers(self) -> bool:
        """Whether another replica was heard of lately."""
        return bool(self._peers)

    def forward(self, wakes: Sequence[Wake]) -> None:
        """Let the other replicas wake waiters of theirs."""
        if not self._peers:
            return
        for key, limit in wakes:
            known = self._wakes.get(key, 0)
            self._wakes[key] = None if limit is None or known is None else known + limit
        if len(self._wakes) > _MAX_KEYS:
            self._wakes.clear()
            self._must_look = True
        self._rouse()

    def post(self, text: str) -> None:
        """Hand a text to what `receive` is at each other replica, in order. The oldest go if too many are."""
        if self._peers:
            self._posts.append(text)
            self._rouse()

    async def run(self, open_line: OpenConnection) -> None:
        """Keep a line open until cancelled, which once is enough for."""
        self._is_over = False
        keeping = asyncio.create_task(self._keep_open(open_line))
        try:
            await asyncio.wait([keeping])
        finally:
            self._is_over = True
            while not keeping.done():
                # A client of Redis that is sending may take a cancellation for something else.
                if not self._is_closing:
                    keeping.cancel()
                await asyncio.wait([keeping], timeout=1)

    async def _keep_open(self, open_line: OpenConnection) -> None:
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        pause = _FIRST_PAUSE
        while not self._is_over:
            began = time.monotonic()
            try:
                async with open_line() as line:
                    await self._use(line)
            except Exception as error:
                if time.monotonic() - began > _HELLO_SECONDS:
                    pause = _FIRST_PAUSE
                say = logger.warning if pause == _FIRST_PAUSE else logger.debug
                say("the line to the other replicas is broken, and will be opened again: %r", error)
            self.is_open = self._is_closing = False
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _use(self, line: Line) -> None:
        async with asyncio.TaskGroup() as group:
            listening = asyncio.Event()
            hearing = group.create_task(line.listen(self._hear, listening.set))
            async with asyncio.timeout(_SEND_SECONDS):
                await listening.wait()
            self.is_open = True
            self._begin_look()
            try:
                await self._send_on(line, {"hello": True})
            finally:
                self._is_closing = True
                hearing.cancel()
                with suppress(Exception):
                    async with asyncio.timeout(1):
                        await line.send(self._frames({"bye": True}, line.frame_size)[0])
                while not hearing.done():
                    # A client of Redis may take a cancellation for the end of its own patience.
                    hearing.cancel()
                    await asyncio.wait([hearing], timeout=1)

    async def _send_on(self, line: Line, first: dict[str, Any]) -> None:
        message = first
        assert self._ready is not None  # noqa: S101 - set by `run`
        while True:
            for frame in self._frames(message, line.frame_size):
                async with asyncio.timeout(_SEND_SECONDS):
                    await line.send(frame)
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_HELLO_SECONDS):
                    await self._ready.wait()
            self._ready.clear()
            self._forget_peers()
            message = self._next_message()

    def _next_message(self) -> dict[str, Any]:
        """Return all that waits. Nothing at all is a greeting too: we are still here."""
        message: dict[str, Any] = {}
        if self._wakes:
            message["wake"], self._wakes = self._wakes, {}
        if self._posts:
            message["posts"] = list(self._posts)
            self._posts.clear()
        if self._must_look:
            message["look"], self._must_look = True, False
        return message

    def _frames(self, message: dict[str, Any], size: int) -> list[str]:
        self._number += 1
        text, room = json.dumps(message, separators=(",", ":")), size - _HEAD_SIZE
        parts = [text[start : start + room] for start in range(0, len(text), room)]
        return [f"{self._name} {self._number} {len(parts)} {part}" for part in parts]

    def _hear(self, frame: str) -> None:
        # What is not of ours is passed over, whoever sent it.
        with suppress(ValueError, TypeError, AttributeError):
            sender, number, count, part = frame.split(" ", 3)
            if sender == self._name:
                return
            parts = self._fragments.pop(f"{sender} {number}", [])
            parts.append(part)
            if len(parts) < int(count):
                self._fragments[f"{sender} {number}"] = parts
                if len(self._fragments) > _MAX_FRAGMENTED:
                    self._fragments.popitem(last=False)
                return
            self._take(sender, json.loads("".join(parts)))

    def _take(self, sender: str, message: dict[str, Any]) -> None:
        if message.get("bye"):
            self._peers.pop(sender, None)
            return
        self._peers[sender] = time.monotonic()
        if message.get("hello"):
            self._rouse()
        for key, limit in message.get("wake", {}).items():
            self._wake(key, limit)
        for text in message.get("posts", ()):
            self.receive(text)
        if message.get("look"):
            self._begin_look()

    def _forget_peers(self) -> None:
        oldest = time.monotonic() - _FORGET_SECONDS
        self._peers = {name: heard for name, heard in self._peers.items() if heard > oldest}

    def _begin_look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_quietly())

    async def _look_quietly(self) -> None:
        try:
            await self._look()
        except Exception as error:
            logger.warning("waiters were not re-checked: %r", error)

    def _rouse(self) -> None:
        if self._loop is None or self._ready is None:
            return
        if asyncio.get_running_loop() is self._loop:
            self._ready.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ready.set)


def _ignore(_: str) -> None:
    """Drop what nobody is there for."""
