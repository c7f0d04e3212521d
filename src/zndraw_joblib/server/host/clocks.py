"""The test clock of `serve --test-clock`: the operations that read and advance it.

They are not in the table of operations: only a server with this clock has them, and no client calls them.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

from fastapi import Depends, FastAPI, Response
from pydantic import ConfigDict, Field

from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.http.access import QueueState
from zndraw_joblib.server.http.identity import BearerTokens
from zndraw_joblib.server.http.openapi import route_options
from zndraw_joblib.server.http.routing import Route, json_response, serves
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_sweep
from zndraw_joblib.wire.bodies import RequestBody, ResponseBody
from zndraw_joblib.wire.messages import SweeperCycle
from zndraw_joblib.wire.operations import Access, Effect, Operation
from zndraw_joblib.wire.scopes import Scope

logger = logging.getLogger(__name__)

# About ten years: a later time might be beyond what databases and clients can store.
MAX_ADVANCE_SECONDS = 315_000_000


class ClockAdvance(RequestBody):
    """Move the clock of the queue forward.

    With `keep_workers`, the heartbeats of the workers that are alive count as sent at the new time. Without
    it, they are as old as the clock shows, and a long advance removes the workers as silent.
    """

    model_config = ConfigDict(extra="forbid")

    seconds: Annotated[float, Field(ge=0, le=MAX_ADVANCE_SECONDS, allow_inf_nan=False)]
    keep_workers: bool = False


class ClockState(ResponseBody):
    """The time of the queue, and how far it is ahead of the real time.

    `cycle` is the cycle of the sweeper that an advance has run.
    """

    now: datetime
    ahead_seconds: float
    cycle: SweeperCycle | None = None


GET_CLOCK = Operation(
    "get_clock", "GET", "/clock", "admin", Access.SUPERUSER, Scope.ADMIN, Effect.READ, ClockState
)
ADVANCE_CLOCK = Operation(
    "advance_clock",
    "POST",
    "/clock/advance",
    "admin",
    Access.SUPERUSER,
    Scope.ADMIN,
    Effect.WRITE,
    ClockState,
    body=ClockAdvance,
)


@serves(GET_CLOCK)
async def get_clock(queue: QueueState, caller: Identity) -> Response:
    """Return the time of the queue."""
    return json_response(_state(queue))


@serves(ADVANCE_CLOCK)
async def advance_clock(queue: QueueState, caller: Identity, body: ClockAdvance) -> Response:
    """Move the clock of the queue forward, and return when the server has done what is due by then.

    All times of the queue move: schedules, delays, retries, time limits, heartbeats, retention, the end of
    tokens. A request that waits ends if its time is over.
    """
    cycle = await advance(cast(JobLib, queue), body.seconds, keeps_workers=body.keep_workers)
    return json_response(_state(queue, cycle))


def _state(queue: QueueState, cycle: SweeperCycle | None = None) -> ClockState:
    clock = cast(TestClock, queue.clock)
    return ClockState(now=clock(), ahead_seconds=clock.ahead_seconds, cycle=cycle)


async def advance(joblib: JobLib, seconds: float, *, keeps_workers: bool = False) -> SweeperCycle:
    """Advance the test clock of a queue; return when the server has done what is due at the new time.

    It queues tasks, submits those of schedules, and runs a cycle of the sweeper, for which the server has
    watched its workers through these seconds. The mass-expiry guard does not delay it.
    """
    clock, runtime = cast(TestClock, joblib.clock), joblib.runtime
    alive_since = clock() - timedelta(seconds=joblib.settings.worker_timeout_seconds)
    clock.advance(seconds, keeps_workers=keeps_workers)
    joblib.sweeper.absence.skip(seconds)
    if keeps_workers:
        await runtime.write(rules_sweep.keep_alive, alive_since)
    # First of all: workers that wait in a claim send signs of life.
    cycle = await joblib.sweeper.cycle()
    if cycle.is_held_back or cycle.held_users:
        cycle = await joblib.sweeper.cycle()
    while await runtime.write(rules_sweep.enqueue_due) == rules_sweep.TASKS_PER_BATCH:
        pass
    await joblib.schedules.submit_due()
    joblib.wake_loops()
    await runtime.recheck.run()
    if isinstance(joblib.identity, BearerTokens):
        joblib.identity.forget_all()
    runtime.waiters.skip(seconds)
    joblib.streams.wake_all()
    logger.warning("The test clock is %g s ahead (advanced by %g s): %s", clock.ahead_seconds, seconds, cycle)
    return cycle.summary


def add_clock(app: FastAPI, identity: Callable[..., Any]) -> None:
    """Add the operations of the clock to an app, without the prefix of the others."""
    for endpoint in (get_clock, advance_clock):
        app.router.add_api_route(
            endpoint.operation.template,
            endpoint,
            dependencies=[Depends(identity)],
            route_class_override=Route,
            **route_options(endpoint),
        )
    logger.warning(
        "This server has a test clock (--test-clock): a superuser's token moves its time. "
        "Do not use it in production"
    )
