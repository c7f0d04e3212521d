"""The npm package and a server for its tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import ServerProcess

from typescript.package import build_programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the compiled programs."""
    return build_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run a server for the tests of a module."""
    path = tmp_path_factory.mktemp("server") / "queue.db"
    with ServerProcess(f"sqlite:///{path}", heartbeat_interval_seconds=0.5) as server:
        yield server
