"""The fixture that runs the state machines."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from databases import empty
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from model.machines import RunMachine


@pytest.fixture
def run_machine(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, examples: int, steps: int
) -> RunMachine:
    """Return a function that runs a machine as `runs` says: always the same examples, as fast as possible."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    fixture = request.getfixturevalue("sqlite_template" if kind == "sqlite" else "postgres_url")

    def new_url() -> str:
        if kind == "sqlite":
            return f"sqlite:///{shutil.copy(fixture, tmp_path / 'model.db')}"
        empty(fixture)
        return str(fixture)

    def run(machine: Callable[[str], RuleBasedStateMachine]) -> None:
        run_state_machine_as_test(lambda: machine(new_url()), settings=profile)

    return run
