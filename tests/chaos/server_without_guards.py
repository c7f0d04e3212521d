"""The command line of the server without the named guards: `server_without_guards.py grace,fencing serve …`.

After each cycle the sweeper prints a line to standard error.
"""

import asyncio
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from zndraw_joblib import cli
from zndraw_joblib.server.background import sweeper
from zndraw_joblib.server.queue import rules_sweep, rules_transitions, sql_workers

_POLL_SECONDS = 0.02


def remove_fencing() -> None:
    """Accept a report of any attempt."""
    replace(rules_transitions, "check_fence", lambda *_: None)


def remove_startup_grace() -> None:
    """Remove silent workers at once after the server was paused."""
    replace(sweeper.Sweeper, "grace_remaining", property(lambda _: 0.0))


def remove_mass_expiry_guard() -> None:
    """Remove any number of workers at once."""
    replace(sweeper.Sweeper, "_must_hold_back", lambda *_: False)


def find_before_removing(*, check_again: bool) -> None:
    """Find silent workers, wait until they have sent a heartbeat, and only then remove them.

    With `check_again`, the statement that removes them checks again, as the server does.
    """
    sweep_workers, lock_if_stale = sweeper.Sweeper._sweep_workers, sql_workers.lock_if_stale

    async def find_then_sweep(self: Any, cycle: sweeper.Cycle) -> None:
        # A cycle in the grace period removes no worker, whatever it finds.
        if self.grace_remaining > sweeper.TIMER_TOLERANCE:
            return await sweep_workers(self, cycle)
        timeout = timedelta(seconds=self._settings.worker_timeout_seconds)
        find = partial(rules_sweep.stale_workers, timeout=timeout)
        if found := await self._write(find):
            write_line("found silent workers")
            while await self._write(find):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)

        async def lock(tx: Any, *arguments: Any) -> Any:
            if check_again:
                return await lock_if_stale(tx, *arguments)
            batch, found[:] = (
                dict.fromkeys(found, sql_workers.SilentWorker()),
                [],
            )  # an empty batch ends the cycle
            return batch

        sql_workers.lock_if_stale = lock
        try:
            return await sweep_workers(self, cycle)
        finally:
            sql_workers.lock_if_stale = lock_if_stale

    sweeper.Sweeper._sweep_workers = find_then_sweep


def print_cycles() -> None:
    """Print each cycle after its end."""
    run_cycle = sweeper.Sweeper.cycle

    async def cycle(self: Any) -> sweeper.Cycle:
        finished = await run_cycle(self)
        write_line(f"cycle: {finished}")
        return finished

    sweeper.Sweeper.cycle = cycle


def replace(owner: Any, name: str, replacement: Any) -> None:
    """Replace an attribute that exists."""
    assert hasattr(owner, name), f"{owner} has no attribute {name}"
    setattr(owner, name, replacement)


def write_line(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)


CHANGES = {
    "fencing": remove_fencing,
    "grace": remove_startup_grace,
    "mass-expiry": remove_mass_expiry_guard,
    "find-then-remove": partial(find_before_removing, check_again=False),
    "find-then-check-again": partial(find_before_removing, check_again=True),
}

if __name__ == "__main__":
    print_cycles()
    for name in filter(None, sys.argv.pop(1).split(",")):
        CHANGES[name]()
    cli.main()
