"""The faults, and an injector that injects them in an order that a seed determines."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from chaos.environment import Environment
from chaos.proxy import Direction
from chaos.records import Fault
from chaos.worker_pool import WorkerSlot

_DROPPED_AT_ONCE = 5
_BEYOND_TIMEOUT_SECONDS = 1.5


class FaultInjector:
    """Injects one fault after the other. Resumes paused workers in the background."""

    def __init__(self, environment: Environment, rng: random.Random) -> None:
        self._environment = environment
        self._rng = rng
        self._resuming: set[asyncio.Task[None]] = set()
        self.kinds: dict[str, tuple[int, Callable[[Fault], Awaitable[None]]]] = {
            "worker SIGKILL": (6, self.kill_worker),
            "worker SIGTERM": (2, self.terminate_worker),
            "worker paused": (5, self.pause_worker),
            "server SIGTERM": (2, lambda fault: self.restart_server(fault, signal.SIGTERM)),
            "server SIGKILL": (2, lambda fault: self.restart_server(fault, signal.SIGKILL)),
            "server paused": (1, self.pause_server),
            "connections closed": (3, self.close_connections),
            "requests dropped": (3, lambda fault: self.drop("request")),
            "responses dropped": (5, lambda fault: self.drop("response")),
        }
        if environment.database.can_restart:
            self.kinds["database immediate"] = 2, lambda fault: self.restart_database("immediate")
            self.kinds["database fast"] = 1, lambda fault: self.restart_database("fast")

    async def run(self, seconds: float, pause: float) -> None:
        """Inject faults for `seconds`, about every `pause` seconds, each kind as often as its weight."""
        end = time.monotonic() + seconds
        while True:
            deck = [kind for kind, (weight, _) in self.kinds.items() for _ in range(weight)]
            self._rng.shuffle(deck)
            for kind in deck:
                wait = self._rng.uniform(0.5, 1.5) * pause
                await asyncio.sleep(min(wait, end - time.monotonic()))
                if time.monotonic() >= end:
                    return
                await self.inject(kind)

    async def inject(self, kind: str) -> Fault:
        """Inject one fault and record it."""
        fault = Fault(kind, time.time())
        self._environment.faults.append(fault)
        await self.kinds[kind][1](fault)
        fault.ended_at = fault.ended_at or time.time()
        return fault

    async def finish(self) -> None:
        """Stop dropping connections, and wait until all workers are resumed."""
        self._environment.proxy.stop_dropping()
        if self._resuming:
            await asyncio.wait(self._resuming)

    def _choose_worker(self, fault: Fault) -> WorkerSlot | None:
        running = [slot for slot in self._environment.workers.slots if not slot.is_paused]
        if not running:
            return None
        slot = self._rng.choice(running)
        fault.pids = (slot.pid,)
        return slot

    async def kill_worker(self, fault: Fault) -> None:
        """Kill a worker and start another."""
        if slot := self._choose_worker(fault):
            await asyncio.to_thread(self._environment.workers.kill, slot)
            self._environment.workers.start(slot)

    async def terminate_worker(self, fault: Fault) -> None:
        """Terminate a worker, wait for its end, and start another."""
        if slot := self._choose_worker(fault):
            await asyncio.to_thread(self._environment.workers.terminate, slot)
            self._environment.workers.start(slot)

    async def pause_worker(self, fault: Fault) -> None:
        """Pause a worker for longer than its timeout, without waiting for the resume."""
        if slot := self._choose_worker(fault):
            self._environment.workers.pause(slot)
            seconds = self._environment.settings["worker_timeout_seconds"] + _BEYOND_TIMEOUT_SECONDS
            fault.ended_at = fault.started_at + seconds
            resuming = asyncio.create_task(self._resume_worker(slot, seconds))
            self._resuming.add(resuming)
            resuming.add_done_callback(self._resuming.discard)

    async def _resume_worker(self, slot: WorkerSlot, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._environment.workers.resume(slot)

    async def restart_server(self, fault: Fault, number: signal.Signals) -> None:
        """End the server process with a signal and start it again."""
        await self._environment.server.stop(number)
        fault.server_back_at = await self._environment.server.start()

    async def pause_server(self, fault: Fault) -> None:
        """Pause the server for longer than the worker timeout; the workers go on."""
        self._environment.server.send(signal.SIGSTOP)
        await asyncio.sleep(self._environment.settings["worker_timeout_seconds"] + _BEYOND_TIMEOUT_SECONDS)
        fault.server_back_at = time.time()
        self._environment.server.send(signal.SIGCONT)

    async def restart_database(self, mode: str) -> None:
        """Restart PostgreSQL in a shutdown mode of pg_ctl."""
        await asyncio.to_thread(self._environment.database.restart, mode)

    async def close_connections(self, fault: Fault) -> None:
        """Close all connections."""
        self._environment.proxy.close_connections()

    async def drop(self, direction: Direction) -> None:
        """Drop the next requests before they reach the server, or the next responses of the server."""
        self._environment.proxy.drop(direction, _DROPPED_AT_ONCE)
