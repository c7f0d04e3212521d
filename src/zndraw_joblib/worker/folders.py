"""A folder, on this machine or wherever fsspec reaches, whose files can be read and nothing else."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

_BLOCK_BYTES = 1024 * 1024
_KINDS = ("file", "directory")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "created")


class Entry(BaseModel):
    """What is in a folder. `type` is ``file``, ``directory``, or ``other`` for what cannot be read.

    `size` in bytes and `modified` are null where they are not known.
    """

    name: str
    type: str
    size: int | None = None
    modified: datetime | None = None


def checked_path(path: str) -> str:
    """Return a path below a folder in its plain form, ``a/b``; the folder itself is the empty text.

    Raises ValueError for what is no such path: one with ``..``, a NUL, a backslash, ``::`` or ``//``.
    """
    plain = path.strip("/")
    parts = plain.split("/") if plain else []
    if {"", ".", ".."} & set(parts) or any(sign in plain for sign in ("\x00", "\\", "::")):
        raise ValueError("not a path inside the folder")
    if os.name == "nt" and ":" in plain:
        raise ValueError("not a path inside the folder")
    return plain


class Folder:
    """A folder to share: a path of this machine, or a URL that fsspec knows, with its `options`.

    Nothing outside of it is read: on this machine not by symbolic links either; a remote system minds its own
    links. Nothing is ever written. What it raises names no place outside of the folder. Thread-safe.
    Raises NotADirectoryError if there is no such folder, ValueError if it cannot be confined, ImportError
    without fsspec.
    """

    def __init__(self, place: str | os.PathLike[str], **options: Any) -> None:
        url_to_fs, local = _fsspec()
        self._fs, root = url_to_fs(os.fspath(place), **{"use_listings_cache": False, **options})
        self._is_local = isinstance(self._fs, local)
        if not self._is_local and any(isinstance(inner, local) for inner in _inner(self._fs)):
            raise ValueError("A folder of this machine is given by its path alone")
        # There, a path is part of an address.
        self._is_web = bool({"http", "https"} & set(_protocols(self._fs)))
        self._root = os.path.realpath(root) if self._is_local else str(root)
        if not self._is_web and not self._fs.isdir(self._root):
            raise NotADirectoryError(f"There is no folder {os.fspath(place)!r}")

    def entries(self, path: str, offset: int, limit: int) -> tuple[list[Entry], int]:
        """Return a part of what is in a folder, by name, and how much there is in all.

        Raises FileNotFoundError, NotADirectoryError, PermissionError, OSError.
        """
        plain = checked_path(path)
        with _discreet(path):
            place = self._place(plain)
            if not self._is_web and not self._fs.isdir(place):
                raise NotADirectoryError if self._fs.exists(place) else FileNotFoundError
            found = self._fs.ls(place, detail=not self._is_local)
            named = {name: one for one in found if (name := _name_in(place, one))}
            names = sorted(named)
            return [self._entry(name, named[name]) for name in names[offset : offset + limit]], len(names)

    def blocks(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Give the bytes of a file from `offset` on, `length` at most, in blocks of at most 1 MiB.

        Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError.
        """
        plain = checked_path(path)
        with _discreet(path), self._open(self._place(plain)) as file:
            if offset:
                file.seek(offset)
            left = length
            while left is None or left > 0:
                block = file.read(_BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES))
                if not block:
                    return
                left = None if left is None else left - len(block)
                yield block

    def _open(self, place: str) -> Any:
        kind = self._fs.info(place)["type"]
        if kind != "file":
            # A pipe would be waited for until somebody writes into it.
            raise IsADirectoryError if kind == "directory" else PermissionError
        file = self._fs.open(place, "rb")
        if self._is_local and not self._is_still(file, place):
            file.close()
            raise FileNotFoundError
        return file

    def _place(self, plain: str) -> str:
        """Return where a path leads. Raises FileNotFoundError, where that is outside."""
        if self._is_web and set(plain) & set("%?#"):
            raise FileNotFoundError
        between = "/" if self._root and plain and not self._root.endswith("/") else ""
        place = f"{self._root}{between}{plain}"
        if not self._is_local:
            return place
        real = os.path.realpath(place)
        if not self._is_inside(real):
            raise FileNotFoundError
        return real

    def _is_inside(self, real: str) -> bool:
        return os.path.commonpath([self._root, real]) == self._root

    @staticmethod
    def _is_still(file: Any, place: str) -> bool:
        """Tell whether an open file is the one at a place, and not what a link has led to meanwhile."""
        return os.path.realpath(place) == place and os.path.samestat(os.fstat(file.fileno()), os.lstat(place))

    def _entry(self, name: str, found: Any) -> Entry:
        shown = name.encode("utf-8", "backslashreplace").decode()
        if self._is_local:
            try:
                real = os.path.realpath(found)
                found = self._fs.info(real) if self._is_inside(real) else {}
            except OSError:  # it went, or is not ours to see
                found = {}
        kind = found.get("type") if found.get("type") in _KINDS else "other"
        size = found.get("size") if kind == "file" else None
        return Entry(name=shown, type=str(kind), size=size, modified=_modified(found))


def _fsspec() -> tuple[Any, Any]:
    # Not imported with the worker: few share folders.
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("Sharing a folder needs fsspec: pip install 'zndraw-joblib[files]'") from error
    return url_to_fs, LocalFileSystem


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _name_in(place: str, found: Any) -> str:
    """Return the name of what was found in a place, an empty one for what is elsewhere."""
    path = str(found if isinstance(found, str) else found["name"]).strip("/")
    home, _, name = path.rpartition("/")
    return name if home == place.strip("/") else ""


def _inner(fs: Any) -> Iterator[Any]:
    """Give a file system, and those that it wraps."""
    while fs is not None:
        yield fs
        fs = getattr(fs, "fs", None)


def _modified(found: Mapping[str, Any]) -> datetime | None:
    for key in _TIMES:
        value = found.get(key)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None


@contextmanager
def _discreet(path: str) -> Iterator[None]:
    """Say of an error what it is and which path it is about, in place of where that is on this machine."""
    try:
        yield
    except Exception as error:
        kind = next((cls for cls in _TEXTS if isinstance(error, cls)), OSError)
        raise kind(f"{_TEXTS[kind]}: {path!r}") from error


_TEXTS: dict[type[OSError], str] = {
    FileNotFoundError: "There is no such file or folder",
    NotADirectoryError: "This is no folder",
    IsADirectoryError: "This is a folder",
    PermissionError: "This may not be read",
    OSError: "This cannot be read",
}
