"""A Slurm and a queue for the tests of this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from servers import ServerProcess

from slurm.batch import Batch
from slurm.cluster import Cluster, find_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Run a Slurm with two nodes."""
    programs = find_programs()
    if programs is None:
        pytest.skip("Slurm is not there, so these tests did not run: `make slurm` sets it up")
    with Cluster(programs) as running:
        yield running


@pytest.fixture
def batch(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Batch]]:
    """Return a function that starts a queue; what is left in Slurm ends with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Batch:
            server = ServerProcess(f"sqlite+aiosqlite:///{tmp_path}/queue.db", **settings)
            stack.enter_context(server)
            made = Batch(cluster, tmp_path, server)
            stack.callback(made.queue.close)
            stack.callback(cluster.cancel_all)
            return made

        yield start
