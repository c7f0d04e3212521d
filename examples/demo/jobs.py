"""The Python modules to count, and the extension that counts one."""

import ast
import os
import sysconfig
import time
from collections import Counter
from pathlib import Path
from typing import Any

from zndraw_joblib.jobs.extensions import Category, Extension

_THIRD_PARTY = frozenset({"site-packages", "dist-packages"})
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.match_case, ast.BoolOp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class CountModule(Extension):
    """Count the parts of a standard library module; `path` is relative to the library."""

    category = Category.ANALYSIS
    path: str

    def run(self, vis: Any, **kwargs: Any) -> dict[str, float]:
        """Return the counts, the id of this process, and how long counting took: in all, and CPU time."""
        began, cpu_began = time.perf_counter(), time.thread_time()
        counts = count_module(self.path)
        cpu_seconds, seconds = time.thread_time() - cpu_began, time.perf_counter() - began
        return {**counts, "pid": os.getpid(), "cpu_seconds": cpu_seconds, "seconds": seconds}


def stdlib_folder() -> Path:
    """Return the folder of the standard library."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def stdlib_modules(limit: int | None = None) -> list[str]:
    """Return the relative paths of all standard library modules, or of `limit` modules spread evenly."""
    folder = stdlib_folder()
    found = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*.py")
        if not _THIRD_PARTY.intersection(path.relative_to(folder).parts)
    )
    step = max(1, len(found) // limit) if limit else 1
    return [path.as_posix() for path in found[::step][:limit]]


def count_module(path: str) -> dict[str, int]:
    """Return the counts of a module.

    Raises SyntaxError or ValueError if Python cannot parse it, ValueError if it is outside the library.
    """
    folder = stdlib_folder()
    source = (folder / path).resolve()
    if not source.is_relative_to(folder):
        raise ValueError(f"{path!r} is outside the standard library. Pass a path relative to {folder}")
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


def is_valid_python(path: str) -> bool:
    """Return whether this interpreter can parse a module."""
    try:
        count_module(path)
    except (SyntaxError, ValueError):
        return False
    return True
