"""A Slurm and a queue for the tests of this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import ServerProcess

from slurm.batch import Batch
from slurm.cluster import RELEASES, Cluster, find_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Run a Slurm with two nodes."""
    programs = find_programs()
    if programs is None:
        pytest.skip("Slurm is not there, so these tests did not run: `make slurm` sets it up")
    with Cluster(programs) as running:
        yield running


@pytest.fixture(scope="session", params=RELEASES)
def rest_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run a Slurm with slurmrestd, of each release."""
    programs = find_programs(request.param)
    if programs is None:
        pytest.skip(f"Slurm of Debian's {request.param} is not there: `make slurm` sets it up")
    with Cluster(programs) as running:
        yield running


@pytest.fixture
def batch(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Batch]]:
    """Return a function that starts a queue; what is left in Slurm ends with the test."""
    with starting(cluster, tmp_path) as start:
        yield start


@pytest.fixture
def rest_batch(rest_cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Batch]]:
    """Return a function that starts a queue beside a Slurm with slurmrestd."""
    with starting(rest_cluster, tmp_path) as start:
        yield start


@contextmanager
def starting(cluster: Cluster, folder: Path) -> Iterator[Callable[..., Batch]]:
    """Return a function that starts a queue during the block."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Batch:
            server = ServerProcess(f"sqlite+aiosqlite:///{folder}/queue.db", **settings)
            stack.enter_context(server)
            made = Batch(cluster, folder, server)
            stack.callback(made.queue.close)
            stack.callback(cluster.cancel_all)
            return made

        yield start
