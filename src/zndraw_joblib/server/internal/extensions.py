"""Load the extensions of internal jobs by name."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zndraw_joblib.contract.extensions import check_job


class CannotLoad(ValueError):
    """An entry of `internal_extensions` cannot be loaded. The text names the entry and the reason."""


def load(entries: Sequence[str]) -> list[type[Any]]:
    """Return the jobs of the entries ``module:Class`` or ``module:function``; raise `CannotLoad`.

    The modules may be in the working directory.
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
    try:
        check_job(found)
    except TypeError as error:
        raise CannotLoad(f"internal_extensions: {entry!r}: {error}") from error
    return found  # type: ignore[no-any-return]
