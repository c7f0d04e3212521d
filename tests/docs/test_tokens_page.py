"""The page about tokens and roles, followed in terminals."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers import free_port
from sitegen import ROOT

from docs.terminals import Terminal, blocks, steps


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_commands_of_the_page_about_tokens_work(tmp_path: Path) -> None:
    """Each command has the output that the page shows."""
    port = str(free_port())
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ZNDRAW", "XDG"))
    }
    environment |= {"HOME": str(tmp_path), "ZNDRAW_JOBLIB_URL": f"http://127.0.0.1:{port}"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with ExitStack() as stack:
        terminals: dict[str, Terminal] = {}
        for block in blocks(ROOT / "docs" / "how-to" / "tokens.md"):
            if block.title not in terminals:
                terminals[block.title] = stack.enter_context(Terminal(tmp_path, environment))
            for command, shown in steps(block.text.replace("8000", port)):
                serves = command == "zndraw-joblib serve"
                terminals[block.title].run(f"{command} --port {port}" if serves else command, shown)
    assert len(terminals) == 2
