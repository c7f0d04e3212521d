"""The end of open streams and sockets whose token was revoked or changed, or has expired."""

import asyncio
import logging

from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.server.http.identity import BearerTokens
from zndraw_joblib.server.process.ports import Wake, identity_key
from zndraw_joblib.server.process.waiters import Waiters
from zndraw_joblib.server.realtime.rooms import Rooms
from zndraw_joblib.server.realtime.streams import Streams

logger = logging.getLogger(__name__)
# This time and the lifetime of cached tokens add up to less than 5 s, after which no revoked token works.
_INTERVAL_SECONDS = 1.5


class TokenWatch:
    """Reads the tokens of all users with open streams or sockets of this process together, again and again.

    A user whose token has changed loses them, in all server processes, and connects again with its rights.
    """

    def __init__(self, tokens: BearerTokens, streams: Streams, rooms: Rooms | None, waiters: Waiters) -> None:
        self._tokens, self._streams, self._rooms, self._waiters = tokens, streams, rooms, waiters
        prefix = identity_key("")
        waiters.subscribe(prefix, lambda key: tokens.forget(key.removeprefix(prefix)))

    async def run(self) -> None:
        """Check the tokens repeatedly, until it is cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            try:
                await self.check()
            except Exception as error:
                log_failed_work(
                    logger, error, "Tokens of open streams were not checked; the next cycle retries"
                )

    async def check(self) -> None:
        """End the streams and sockets of users whose tokens have changed."""
        callers = set(self._streams.callers)
        if self._rooms is not None:
            callers |= {owner.identity for owner in self._rooms.supervisor.owners.values()}
        changed = await self._tokens.find_changed(callers)
        if changed:
            self._waiters.notify([Wake(identity_key(name)) for name in sorted(changed)])
