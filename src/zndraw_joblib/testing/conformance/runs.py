"""A run of the kit: scenarios, one after another, each with a new process of the worker."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx

from zndraw_joblib.testing.conformance.proxy import Proxy
from zndraw_joblib.testing.conformance.scenarios import Level, Scenario
from zndraw_joblib.testing.conformance.server import Server
from zndraw_joblib.testing.conformance.stage import TOKEN, Deviation, Stage, WorkerProcess


@dataclass(frozen=True)
class Result:
    """How a scenario has ended. `did` says what the worker did instead of what it must do."""

    name: str
    level: Level
    must: str
    passed: bool
    seconds: float
    did: str = ""
    requests: list[str] = field(default_factory=list)
    output: str = ""


class Run:
    """Plays scenarios during a `with` block, with a server of its own; `patience` multiplies all times."""

    def __init__(self, folder: Path, patience: float = 1.0, *, database_url: str | None = None) -> None:
        self._folder, self.patience, self._database_url = folder, patience, database_url
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the server and the proxy. Raises `CannotStart`."""
        with ExitStack() as stack:
            self._server = stack.enter_context(Server(self._folder, self._database_url).running())
            self._proxy = stack.enter_context(Proxy().running())
            self._token = self._server.request("POST", "/worker-tokens", TOKEN)["token"]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop them."""
        self._stack.close()

    def play(self, scenario: Scenario, command: Sequence[str]) -> Result:
        """Play a scenario with a new process of this command. Raises `CannotStart`."""
        worker = WorkerProcess(list(command), self._folder / "worker.log", self._proxy.url, self._token)
        return self._play(scenario, Stage(self._server, self._proxy, worker, self.patience))

    def _play(self, scenario: Scenario, stage: Stage) -> Result:
        began = time.monotonic()
        did, requests, output = "", list[str](), ""
        try:
            stage.open()
            for step in scenario.steps:
                step.play(stage)
            stage.check_always()
        except Deviation as error:
            did, requests, output = str(error), stage.show(), stage.worker.output
        except httpx.HTTPStatusError as error:
            did, requests = f"the server refused a request of the kit: {error.response.text}", stage.show()
        finally:
            stage.close()
        seconds = round(time.monotonic() - began, 2)
        return Result(scenario.name, scenario.level, scenario.must, not did, seconds, did, requests, output)
