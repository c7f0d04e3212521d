"""The page about clients does what it says."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sdk.live import TOKEN, LiveServer

from client.jobs import Area, Fail
from zndraw_joblib.client.queue import Queue
from zndraw_joblib.worker.manager import JobManager

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
ALL_BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
# What an operator does prints nothing.
BLOCKS = [block for block in ALL_BLOCKS if "print(" in block]


class Plain(Area):
    """The job of the page: it reports plain text."""

    def run(self, vis: Any, *, task: Any) -> float:
        """Return the area as a float."""
        task.progress(1, 2, message="multiplying")
        task.log("width times height")
        return float(self.width * self.height)


def test_every_block_prints_what_its_comments_say(
    server: LiveServer,
    worker: Callable[..., JobManager],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A comment behind a print is its output; in a loop it is that of each round."""
    monkeypatch.setenv("ZNDRAW_JOBLIB_URL", server.url)
    monkeypatch.setenv("ZNDRAW_JOBLIB_TOKEN", TOKEN)
    manager = worker()
    manager.register(type("Area", (Plain,), {"__module__": __name__}))
    manager.register(Fail)
    names: dict[str, Any] = {}
    queues: set[Queue] = set()
    assert len(BLOCKS) == 5
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the code of the page
        printed = capsys.readouterr().out.splitlines()
        expected = re.findall(r"print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert expected
        assert list(dict.fromkeys(printed)) == list(dict.fromkeys(expected))
        if isinstance(names["queue"], Queue):
            queues.add(names["queue"])
    for queue in queues:
        queue.close()
