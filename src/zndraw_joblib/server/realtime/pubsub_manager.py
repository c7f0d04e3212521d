"""Socket.IO's events for the sockets of all replicas, without Redis."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from socketio.async_pubsub_manager import AsyncPubSubManager

from zndraw_joblib.server.pubsub.pubsub import PubSub

_MAX_WAITING = 10_000


class PubSubManager(AsyncPubSubManager):  # type: ignore[misc]
    """A client manager of python-socketio that sends its messages by the pubsub between replicas."""

    name = "pubsub"

    def __init__(self, pubsub: PubSub) -> None:
        super().__init__()
        self._pubsub = pubsub
        self._heard: asyncio.Queue[str] = asyncio.Queue(_MAX_WAITING)

    @property
    def has_subscribers(self) -> bool:
        """Whether there is a socket here, or another replica that may have some."""
        return "/" in self.rooms or self._pubsub.has_peers

    def initialize(self) -> None:
        """Listen, once the first socket comes: until then nobody here wants to hear."""
        self._heard = asyncio.Queue(_MAX_WAITING)
        self._pubsub.subscribe(self._take)
        super().initialize()

    def _take(self, text: str) -> None:
        if not self._heard.full():
            self._heard.put_nowait(text)

    async def _publish(self, data: dict[str, Any]) -> None:
        self._pubsub.publish(self.json.dumps(data))

    async def _listen(self) -> AsyncIterator[str]:
        while True:
            yield await self._heard.get()
