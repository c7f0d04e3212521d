"""The faults, and the one that injects them in an order that a seed decides."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from chaos.evidence import Fault
from chaos.pool import Place
from chaos.stage import Stage

_LOST_AT_ONCE = 5
_LONG_SECONDS = 1.5


class Injector:
    """Injects one fault after the other; stopped workers are resumed meanwhile."""

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage = stage
        self._rng = rng
        self._resuming: set[asyncio.Task[None]] = set()
        self.kinds: dict[str, tuple[int, Callable[[Fault], Awaitable[None]]]] = {
            "worker kill -9": (6, self.kill_worker),
            "worker SIGTERM": (2, self.drain_worker),
            "worker stopped": (5, self.stop_worker),
            "server SIGTERM": (2, lambda fault: self.restart_server(fault, signal.SIGTERM)),
            "server kill -9": (2, lambda fault: self.restart_server(fault, signal.SIGKILL)),
            "server stopped": (1, self.freeze_server),
            "connections cut": (3, self.cut),
            "requests lost": (3, lambda fault: self.lose(fault, "request")),
            "answers lost": (5, lambda fault: self.lose(fault, "answer")),
        }
        if stage.database.can_restart:
            self.kinds["database immediate"] = 2, lambda fault: self.restart_database("immediate")
            self.kinds["database fast"] = 1, lambda fault: self.restart_database("fast")

    async def run(self, seconds: float, pause: float) -> None:
        """Inject for `seconds`, about every `pause` seconds; each kind comes in its turn."""
        end = time.monotonic() + seconds
        while True:
            deck = [kind for kind, (times, _) in self.kinds.items() for _ in range(times)]
            self._rng.shuffle(deck)
            for kind in deck:
                wait = self._rng.uniform(0.5, 1.5) * pause
                await asyncio.sleep(min(wait, end - time.monotonic()))
                if time.monotonic() >= end:
                    return
                await self.inject(kind)

    async def inject(self, kind: str) -> Fault:
        """Inject one fault, and note it."""
        fault = Fault(kind, time.time())
        self._stage.faults.append(fault)
        await self.kinds[kind][1](fault)
        fault.until = fault.until or time.time()
        return fault

    async def finish(self) -> None:
        """Wait until all that was stopped goes on."""
        self._stage.proxy.heal()
        if self._resuming:
            await asyncio.wait(self._resuming)

    def _victim(self, fault: Fault) -> Place | None:
        running = [place for place in self._stage.pool.places if not place.is_stopped]
        if not running:
            return None
        place = self._rng.choice(running)
        fault.pids = (place.pid,)
        return place

    async def kill_worker(self, fault: Fault) -> None:
        """Kill a worker, and start another."""
        if place := self._victim(fault):
            await asyncio.to_thread(self._stage.pool.kill, place)
            self._stage.pool.fill(place)

    async def drain_worker(self, fault: Fault) -> None:
        """Ask a worker to end, wait until it has done so, and start another."""
        if place := self._victim(fault):
            await asyncio.to_thread(self._stage.pool.drain, place)
            self._stage.pool.fill(place)

    async def stop_worker(self, fault: Fault) -> None:
        """Stop a worker for longer than its timeout; it goes on later."""
        if place := self._victim(fault):
            self._stage.pool.send(place, signal.SIGSTOP)
            away = self._stage.settings["worker_timeout_seconds"] + _LONG_SECONDS
            fault.until = fault.at + away
            resuming = asyncio.create_task(self._resume(place, away))
            self._resuming.add(resuming)
            resuming.add_done_callback(self._resuming.discard)

    async def _resume(self, place: Place, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stage.pool.send(place, signal.SIGCONT)

    async def restart_server(self, fault: Fault, number: signal.Signals) -> None:
        """End the server's process by a signal, and start it again."""
        await self._stage.server.stop(number)
        fault.back_at = await self._stage.server.start()

    async def freeze_server(self, fault: Fault) -> None:
        """Stop the server for longer than the workers' timeout; they are well meanwhile."""
        self._stage.server.send(signal.SIGSTOP)
        await asyncio.sleep(self._stage.settings["worker_timeout_seconds"] + _LONG_SECONDS)
        fault.back_at = time.time()
        self._stage.server.send(signal.SIGCONT)

    async def restart_database(self, mode: str) -> None:
        """Restart PostgreSQL."""
        await asyncio.to_thread(self._stage.database.restart, mode)

    async def cut(self, fault: Fault) -> None:
        """Drop all connections."""
        self._stage.proxy.cut()

    async def lose(self, fault: Fault, what: str) -> None:
        """Drop the connections of the next requests, before they arrive or before they are answered."""
        self._stage.proxy.lose(what, _LOST_AT_ONCE)
