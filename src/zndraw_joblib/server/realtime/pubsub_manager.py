"""The Socket.IO client manager that carries events between server processes over PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

from zndraw_joblib.server.pubsub.pubsub import PubSub
from zndraw_joblib.server.realtime.socketio_internals import MessageManager

_MAX_MESSAGES = 10_000


class PubSubManager(MessageManager):
    """A client manager that exchanges its messages by the pub/sub between replicas.

    At most 10,000 messages wait to be handled; further ones are dropped, because an event is a hint.
    """

    name = "pubsub"

    def __init__(self, pubsub: PubSub) -> None:
        super().__init__()
        self._pubsub = pubsub
        self._messages: asyncio.Queue[str] = asyncio.Queue(_MAX_MESSAGES)

    @property
    def has_subscribers(self) -> bool:
        """Whether this process has a connected socket, or another replica may have one."""
        return self.has_sockets or self._pubsub.has_peers

    def initialize(self) -> None:
        """Start to receive when the first socket connects; python-socketio calls this."""
        self._messages = asyncio.Queue(_MAX_MESSAGES)
        self._pubsub.subscribe(self._put)
        super().initialize()

    def _put(self, text: str) -> None:
        if not self._messages.full():
            self._messages.put_nowait(text)

    def send(self, text: str) -> None:
        """Queue a message for the other processes."""
        self._pubsub.publish(text)

    async def receive(self) -> AsyncIterator[str]:
        """Return the messages of the other processes as they come."""
        while True:
            yield await self._messages.get()
