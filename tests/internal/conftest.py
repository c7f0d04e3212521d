"""Internal jobs on real processes: PostgreSQL, Valkey, and workers that are killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import ServerProcess, Valkey

from internal.crew import FOLDER, JOBS, QUICK


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
