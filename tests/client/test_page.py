"""The page about clients does what it says."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs.code import code
from sdk.live import TOKEN, LiveServer

from zndraw_joblib.client.queue import Queue
from zndraw_joblib.worker.manager import JobManager

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
BLOCKS = [block.text for block in code("python") if block.page == PAGE]
# What an operator does prints nothing.
CALLS = [block for block in BLOCKS if "print(" in block]
[README] = [block.text for block in code("python") if block.page.name == "README.md" and "@job" in block.text]


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
    names: dict[str, Any] = {}
    for block in [README, *(block for block in BLOCKS if "@job" in block)]:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the code of the pages
    manager.register(names["area"])
    manager.register(names["side"])
    queues: set[Queue] = set()
    assert len(CALLS) == 5
    for block in CALLS:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the code of the page
        printed = capsys.readouterr().out.splitlines()
        expected = re.findall(r"print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert expected
        assert list(dict.fromkeys(printed)) == list(dict.fromkeys(expected))
        if isinstance(names["queue"], Queue):
            queues.add(names["queue"])
    for queue in queues:
        queue.close()
