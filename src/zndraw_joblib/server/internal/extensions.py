"""Load the extensions of internal jobs by name."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_REQUIRED = ("model_json_schema", "model_validate", "run")


class CannotLoad(ValueError):
    """An entry of `internal_extensions` cannot be loaded. The text names the entry and the reason."""


def load(entries: Sequence[str]) -> list[type[Any]]:
    """Return the classes of the entries ``module:Class``, also from the working directory.

    Raises `CannotLoad`.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [_load(entry) for entry in entries]


def _load(entry: str) -> type[Any]:
    module, _, name = entry.partition(":")
    if not module or not name:
        raise CannotLoad(f"internal_extensions: {entry!r} does not have the form module:Class")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise CannotLoad(f"internal_extensions: {entry!r}: there is no module {module!r}") from error
        raise CannotLoad(f"internal_extensions: {entry!r} cannot be imported: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(f"internal_extensions: {entry!r} cannot be imported: {reason}") from error
    if found is None:
        raise CannotLoad(f"internal_extensions: {entry!r}: the module {module!r} has no {name!r}")
    missing = [name for name in _REQUIRED if not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing or not getattr(found, "category", None):
        raise CannotLoad(
            f"internal_extensions: {entry!r} is no extension: a class with a category and a run method"
        )
    return found
