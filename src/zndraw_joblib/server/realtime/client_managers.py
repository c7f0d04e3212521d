"""The Socket.IO client manager that carries events between server processes over pub/sub."""

import asyncio
from collections.abc import AsyncIterator
from sys import getsizeof

from zndraw_joblib.server.process.pubsub import BoundedQueue, PubSub
from zndraw_joblib.server.realtime.socketio_internals import MessageManager


class PubSubManager(MessageManager):
    """A client manager that exchanges its messages by the pub/sub between replicas.

    At most 10,000 messages or 16 MiB wait to be handled; older ones are dropped, because an event is a hint.
    """

    name = "pubsub"

    def __init__(self, pubsub: PubSub) -> None:
        super().__init__()
        self._pubsub = pubsub
        self._messages: BoundedQueue[str] = BoundedQueue("messages of other servers", getsizeof)
        self._has_messages = asyncio.Event()

    @property
    def has_subscribers(self) -> bool:
        """Whether this process has a connected socket, or another replica may have one."""
        return self.has_sockets or self.has_others

    @property
    def has_others(self) -> bool:
        """Whether there is another replica."""
        return bool(self._pubsub.peers)

    def initialize(self) -> None:
        """Start to receive when the first socket connects; python-socketio calls this."""
        self._has_messages = asyncio.Event()
        self._pubsub.subscribe(self._put)
        super().initialize()

    def _put(self, text: str) -> None:
        self._messages.put(text)
        self._has_messages.set()

    def send(self, text: str) -> None:
        """Queue a message for the other processes."""
        self._pubsub.publish(text)

    async def receive(self) -> AsyncIterator[str]:
        """Return the messages of the other processes as they come."""
        while await self._has_messages.wait():
            self._has_messages.clear()
            while self._messages:
                yield self._messages.pop()
            self._messages.log_drops()
