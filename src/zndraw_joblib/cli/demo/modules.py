"""The Python modules to count, and the extension that counts one."""

import ast
import os
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

from zndraw_joblib.contract.extensions import Category, Extension

_FOREIGN = frozenset({"site-packages", "dist-packages"})
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.match_case, ast.BoolOp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class CountModule(Extension):
    """Count what a module of the standard library consists of; `path` is relative to the library."""

    category = Category.ANALYSIS
    path: str

    def run(self, vis: Any, **kwargs: Any) -> dict[str, int]:
        """Return the counts, and the process that counted."""
        return {**count(self.path), "pid": os.getpid()}


def folder() -> Path:
    """Return where the standard library is."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def stdlib(limit: int | None = None) -> list[str]:
    """Return every module of the standard library, or an even selection of `limit`, as relative paths."""
    home = folder()
    found = sorted(
        path.relative_to(home)
        for path in home.rglob("*.py")
        if not _FOREIGN.intersection(path.relative_to(home).parts)
    )
    step = max(1, len(found) // limit) if limit else 1
    return [path.as_posix() for path in found[::step][:limit]]


def count(path: str) -> dict[str, int]:
    """Return the counts of a module. Raises what `ast.parse` raises, ValueError outside of the library."""
    home = folder()
    source = (home / path).resolve()
    if not source.is_relative_to(home):
        raise ValueError(f"{path!r} is not in the standard library")
    text = source.read_bytes()
    kinds: Counter[type[ast.AST]] = Counter()
    docstrings = 0
    for node in ast.walk(ast.parse(text)):
        kinds[type(node)] += 1
        docstrings += isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    return {
        "lines": len(text.splitlines()),
        "functions": sum(kinds[kind] for kind in _FUNCTIONS),
        "classes": kinds[ast.ClassDef],
        "branches": sum(kinds[kind] for kind in _BRANCHES),
        "docstrings": docstrings,
    }


def can_parse(path: str) -> bool:
    """Tell whether a module is Python that this interpreter can read."""
    try:
        count(path)
    except (SyntaxError, ValueError):
        return False
    return True
