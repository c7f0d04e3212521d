"""Messages between a worker and a process that runs its tasks, over a pair of sockets."""

import socket
from collections.abc import Callable
from struct import Struct

_CHECK_SECONDS = 0.5
_LENGTH = Struct("!Q")


class Channel:
    """One end of a pair of sockets, for messages of any length.

    While the other end neither sends nor receives, `is_over` is called twice a second. Once it returns true,
    and nothing is left to receive, EOFError is raised: processes that a job forked may keep the other end
    open.
    """

    def __init__(self, end: socket.socket, is_over: Callable[[], bool] | None = None) -> None:
        self._socket = end
        self._is_over = is_over
        end.settimeout(_CHECK_SECONDS if is_over else None)

    def send(self, message: bytes) -> None:
        """Send a message."""
        view = memoryview(_LENGTH.pack(len(message)) + message)
        while view:
            view = view[self._transfer(self._socket.send, view) :]

    def receive(self, on_pause: Callable[[], None] = lambda: None) -> bytes:
        """Wait for a message and return it; with `is_over`, call `on_pause` as often."""
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, on_pause))
        return self._receive(length, on_pause)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _receive(self, length: int, on_pause: Callable[[], None]) -> bytes:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            count = self._transfer(self._socket.recv_into, view, on_pause)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(content)

    def _transfer(
        self, call: Callable[[memoryview], int], view: memoryview, on_pause: Callable[[], None] = lambda: None
    ) -> int:
        is_last = False
        while True:
            try:
                return call(view)
            except TimeoutError:
                if is_last:
                    raise EOFError from None
                is_last = self._is_over is not None and self._is_over()
                on_pause()
