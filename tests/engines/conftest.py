"""The server and the workers of the SDK's tests, for workers on real clusters."""

from sdk.conftest import api, room, server, worker

__all__ = ["api", "room", "server", "worker"]
