"""Make the client without an event loop from the one with it."""

import re
import subprocess
import sys
from pathlib import Path

from generate import ROOT

CLIENT = ROOT / "src" / "zndraw_joblib" / "client"
_RUFF = Path(sys.executable).with_name("ruff")
_READER = "from zndraw_joblib.client.results import ResultReader"
# Regular expressions and what replaces them, in this order.
_REPLACEMENTS = {
    r"`client\.(\w+)` has the same .*": r"Made from `client.async_\1` by `make generate`; do not edit.",
    r" Close it with `aclose`\.": "",
    r"Use it in one event loop; an asynchronous": "Thread-safe; a",
    r"api: AsyncConnection": "api: ApiManager",
    r"(from \S+ import )AsyncConnection": rf"{_READER}\n\1ApiManager, Connection",
    r"Queue\(AsyncSubmitter\)": "Queue(Submitter, ResultReader)",
    r"AsyncRest": "TaskRest",
    r"\bAsync(?=[A-Z])|(?<=client\.)async_(?=(?:rest|schedules|webhooks|operators) import)": "",
    r"\basync (?=def|for|with)|\bawait ": "",
    r"asyncio": "time",
    r"\basync(?=contextmanager)|\ba(?=close\b|read\b|iter_bytes)|(?<=__)a(?=enter|exit)": "",
}


def text(module: str) -> str:
    """Return the module of this name, formatted; names that it does not use are not imported."""
    code = (CLIENT / f"async_{module}.py").read_text(encoding="utf-8")
    for pattern, replacement in _REPLACEMENTS.items():
        code = re.sub(pattern, replacement, code)
    for command in (["check", "--fix-only", "--unsafe-fixes", "--quiet"], ["format"]):
        ruff = [str(_RUFF), *command, "--stdin-filename", str(CLIENT / f"{module}.py"), "-"]
        code = subprocess.check_output(ruff, input=code, text=True, cwd=ROOT)  # noqa: S603
    return code
