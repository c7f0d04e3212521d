"""What type checkers see of the old import paths: stubs, which the wheel puts where the modules are found.

Run this file to write them.
"""

import ast
import tomllib
from pathlib import Path

import pytest

import zndraw_joblib
from zndraw_joblib.compat_0_1.names import NAMES

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "src" / "zndraw_joblib" / "compat_0_1" / "stubs"
# `zndraw_joblib.client` is a current package.
MODULES = sorted(set(NAMES) - {"client"})


def stub_of(module: str) -> str:
    """Return the stub of an old module: only ``X as X`` is exported, so renamed names are assigned."""
    imports, renamed = set(), []
    for name, known in NAMES[module].items():
        where, _, value = known.target.partition(":")
        if where == "zndraw_joblib":  # its names load these modules
            where = f"zndraw_joblib.{zndraw_joblib._MODULE_OF[value]}"
        imports.add(f"from {where} import {value} as {value}\n")
        renamed += [f"{name} = {value}\n"] if name != value else []
    return "".join([*sorted(imports), *(["\n"] if renamed else []), *renamed])


def test_each_stub_has_the_names(subtests: pytest.Subtests) -> None:
    """The stub of a module has its names, each from its new place."""
    for module in MODULES:
        written = ast.parse((STUBS / f"{module}.pyi").read_text())  # ruff breaks long lines
        with subtests.test(module):
            assert ast.dump(written) == ast.dump(ast.parse(stub_of(module)))


def test_there_are_no_other_stubs() -> None:
    """The wheel has them in the package, so that they are found as `zndraw_joblib.<module>`."""
    assert {path.stem for path in STUBS.iterdir()} == set(MODULES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["src/zndraw_joblib/compat_0_1/stubs"] == "zndraw_joblib"


if __name__ == "__main__":
    for each in MODULES:
        (STUBS / f"{each}.pyi").write_text(stub_of(each))
