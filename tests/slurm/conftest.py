"""A Slurm and a queue for the tests of this folder."""

from collections.abc import Iterator

import pytest

from slurm.cluster import Cluster, find_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Run a Slurm with two nodes."""
    programs = find_programs()
    if programs is None:
        pytest.skip("Slurm is not there, so these tests did not run: `make slurm` sets it up")
    with Cluster(programs) as running:
        yield running
