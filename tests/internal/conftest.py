"""Internal jobs in real processes, with PostgreSQL and Valkey."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import only_sqlite  # noqa: F401 - a fixture, found by its name
from servers import ServerProcess, Valkey

from internal.processes import JOBS, PYTHONPATH, SHORT_INTERVALS


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """Start a Valkey server for one test, which may restart it."""
    server = Valkey()
    yield server
    server.close()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return the path of the journal, in which jobs record what they do."""
    return tmp_path / "journal"


@pytest.fixture
def settings(postgres_url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings that a server shares with the processes that run its internal tasks."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    return {"redis_url": valkey.url, "database_url": postgres_url, "internal_concurrency": 4}


@pytest.fixture
def server(settings: dict[str, Any]) -> Iterator[ServerProcess]:
    """Run a server that dispatches internal tasks to Valkey."""
    with ServerProcess(**settings, **SHORT_INTERVALS, internal_extensions=JOBS) as process:
        yield process
