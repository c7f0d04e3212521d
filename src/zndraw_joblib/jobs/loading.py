"""Load a worker's extensions, and the context they run in, from a module or a file."""

import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import ModuleType
from typing import Any

from zndraw_joblib.jobs.extensions import check_job
from zndraw_joblib.wire.names import near_text

log = logging.getLogger(__name__)
_MAX_FILES = 5


class CannotLoad(Exception):
    """A target cannot be loaded; the text says why, for the user."""


class TargetMissing(CannotLoad):
    """The module or file does not exist, or has no such name in it."""


class TargetBroken(CannotLoad):
    """Importing the module fails; the cause is the exception that it raised."""


class NothingToServe(CannotLoad):
    """The module defines no extension."""


def load_extensions(target: str) -> list[type[Any]]:
    """Return the extensions that a module or a ``.py`` file defines, in their order.

    Classes of other modules, abstract classes and names with a leading underscore do not count.
    Raises `CannotLoad`.
    """
    return extensions_of(load_module(target), target)


def extensions_of(module: ModuleType, target: str = "") -> list[type[Any]]:
    """Return the extensions that a module defines, as `load_extensions` does. Raises `NothingToServe`."""
    classes = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_extension(value) and value.__module__ == module.__name__
    ]
    extensions = [cls for cls in dict.fromkeys(classes) if _takes_vis(cls)]
    if not extensions:
        raise NothingToServe(
            f"{target or module.__name__!r} defines no extension: no function with @job, and no class of its "
            "own with a category and run(self, vis)"
        )
    return extensions


def load_jobs(target: str, places: Sequence[str]) -> list[type[Any]]:
    """Return the extensions ``module:name``, or ``:name`` for one of `target`. Raises `CannotLoad`."""
    script = load_module(target)
    return [_load_job(place, script) for place in places]


def _load_job(place: str, script: ModuleType) -> type[Any]:
    name, _, path = place.partition(":")
    value: Any = load_module(name) if name else script
    for part in path.split("."):
        value = getattr(value, part, None)
    if not _is_extension(value):
        raise TargetMissing(f"{name or script.__name__!r} has no job {path!r}")
    return value  # type: ignore[no-any-return]


def load_context(target: str) -> Callable[..., Any]:
    """Return the function that ``module:name`` or ``file.py:name`` names. Raises `CannotLoad`."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise TargetMissing(f"{target!r} is not of the form module:function")
    factory = getattr(load_module(place), name, None)
    if factory is None:
        raise TargetMissing(f"{place!r} has no {name!r}")
    if not callable(factory):
        raise TargetBroken(f"{target!r} is not a function")
    return factory  # type: ignore[no-any-return]


def load_executor(target: str) -> Callable[[], Executor]:
    """Return the function that makes an executor, as `load_context` does. Raises `CannotLoad`."""
    return load_context(target)


def missing_file_text(target: str) -> str:
    """Return the text of an error for a file of jobs that does not exist, with those that its folder has."""
    folder = Path(target).resolve().parent
    names = sorted(path.name for path in folder.glob("*.py")) if folder.is_dir() else []
    near = near_text(Path(target).name, names)
    shown = ", ".join(names[:_MAX_FILES]) + (", …" if len(names) > _MAX_FILES else "")
    has = f": {folder} has {shown}" if names else f": {folder} has no Python file"
    return f"There is no file {target!r}{near or has}"


def load_module(target: str) -> ModuleType:
    """Import a module by its name, or a ``.py`` file by its path. Raises `CannotLoad`."""
    is_file = target.endswith(".py")
    path = Path(target).resolve()
    if is_file and not path.is_file():
        raise TargetMissing(missing_file_text(target))
    folder = str(path.parent) if is_file else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _import_file(path) if is_file else importlib.import_module(target)
    except ModuleNotFoundError as error:
        if not is_file and error.name and f"{target}.".startswith(f"{error.name}."):
            raise TargetMissing(f"There is no module {target!r}; a file needs its .py") from error
        raise TargetBroken(f"{target!r} cannot be imported: {error}") from error
    except SyntaxError as error:
        raise TargetBroken(f"{target!r} is not valid Python: {error}") from error
    except Exception as error:
        raise TargetBroken(f"{target!r} cannot be imported: {type(error).__name__}: {error}") from error


def location_of(error: Exception) -> str:
    """Return the file and line where an import failed, in parentheses; empty for another error."""
    cause = error.__cause__
    if not isinstance(error, TargetBroken) or cause is None or isinstance(cause, SyntaxError):
        return ""
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if not f.filename.startswith("<frozen ")]
    return f" ({frames[-1].filename}:{frames[-1].lineno})"


def _import_file(path: Path) -> ModuleType:
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    # pydantic looks up the names in annotations in the module of a class.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_extension(value: object) -> bool:
    if not isinstance(value, type):
        return False
    try:
        check_job(value)
    except TypeError:
        return False
    return True


def _takes_vis(cls: type[Any]) -> bool:
    run = inspect.getattr_static(cls, "run")
    if not inspect.isfunction(run):
        return True
    signature = inspect.signature(run)
    try:
        signature.bind(None, None, **({"task": None} if "task" in signature.parameters else {}))
    except TypeError as error:
        log.warning(
            "%s.run cannot be called, so it is not served: %s. Define it as run(self, vis) or "
            "run(self, vis, *, task)",
            cls.__name__,
            error,
        )
        return False
    return True
