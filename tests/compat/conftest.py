"""A server on a real port, as in the tests of the SDK."""

from sdk.conftest import api, own_server, room, server, worker

__all__ = ["api", "own_server", "room", "server", "worker"]
