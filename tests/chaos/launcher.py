"""The server's command line with guards taken out: `launcher.py credit,brake serve …`.

Each cycle of its sweeper is told on standard error.
"""

import asyncio
import math
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from zndraw_joblib import cli
from zndraw_joblib.server.background import sweeper
from zndraw_joblib.server.service import rules, sweep
from zndraw_joblib.server.store import workers

_LOOK_SECONDS = 0.02


def take_out_fence() -> None:
    """Take every report, whatever claim it is of."""
    replace(rules, "check_fence", lambda *_: None)


def take_out_credit() -> None:
    """Judge workers at once after the server was away."""
    assert "_watching_since" in sweeper.Sweeper.__init__.__code__.co_names
    sweeper.Sweeper._watching_since = property(lambda _: -math.inf, lambda *_: None)


def take_out_brake() -> None:
    """Remove any number of workers at once."""
    replace(sweeper.Sweeper, "_must_hold_back", lambda *_: False)


def look_first(*, exclusive_start: bool) -> None:
    """Let the sweeper look who is silent, wait until they have reported, and only then remove them.

    With the guard, the statement that removes them looks again.
    """
    sweep_workers, lock_if_stale = sweeper.Sweeper._sweep_workers, workers.lock_if_stale

    async def looking(self: Any, cycle: sweeper.Cycle) -> None:
        look = partial(sweep.stale_workers, timeout=_timeout(self))
        if seen := await self._write(look):
            tell("judged")
            while await self._write(look):  # noqa: ASYNC110 - the database tells no event
                await asyncio.sleep(_LOOK_SECONDS)

        async def lock(tx: Any, *given: Any) -> Any:
            return await lock_if_stale(tx, *given) if exclusive_start else seen

        workers.lock_if_stale = lock
        try:
            await sweep_workers(self, cycle)
        finally:
            workers.lock_if_stale = lock_if_stale

    sweeper.Sweeper._sweep_workers = looking


def _timeout(self: Any) -> timedelta:
    return timedelta(seconds=self._settings.worker_timeout_seconds)


def tell_cycles() -> None:
    """Tell each cycle once it is over."""
    run_cycle = sweeper.Sweeper.cycle

    async def cycle(self: Any) -> sweeper.Cycle:
        done = await run_cycle(self)
        tell(f"cycle: {done}")
        return done

    sweeper.Sweeper.cycle = cycle


def replace(owner: Any, name: str, by: Any) -> None:
    """Put something in the place of what is there."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, by)


def tell(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)


CHANGES = {
    "fence": take_out_fence,
    "credit": take_out_credit,
    "brake": take_out_brake,
    "look-then-remove": partial(look_first, exclusive_start=False),
    "look-then-look-again": partial(look_first, exclusive_start=True),
}

if __name__ == "__main__":
    tell_cycles()
    for name in filter(None, sys.argv.pop(1).split(",")):
        CHANGES[name]()
    cli.main()
