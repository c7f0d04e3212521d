"""Share a folder, on this machine or wherever fsspec reaches: two providers list it and read its files."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field

from zndraw_joblib.jobs.extensions import Provider
from zndraw_joblib.jobs.failures import missing_extra
from zndraw_joblib.wire.messages import MAX_PAGE, PaginatedResponse
from zndraw_joblib.wire.names import GLOBAL
from zndraw_joblib.worker.manager import JobManager

_BLOCK_BYTES = 1024 * 1024
_KINDS = ("file", "directory")
_TIME_FIELDS = ("mtime", "LastModified", "last_modified", "modified", "created")


class FolderEntry(BaseModel):
    """An entry of a folder. `type` is ``file``, ``directory``, or ``other`` for what cannot be read.

    `size` is in bytes; `size` and `modified` are null if unknown.
    """

    name: str
    type: str
    size: int | None = None
    modified: datetime | None = None


def normalized_path(path: str) -> str:
    """Return a path below a folder as ``a/b``, the folder itself as the empty string.

    Raises ValueError for a path with ``..``, a NUL, a backslash, ``::`` or ``//``.
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

    Nothing outside of the folder is read. On this machine that holds for symbolic links too; a remote file
    system resolves its own links. Nothing is written. Errors show only paths below the folder. Thread-safe.

    Raises NotADirectoryError if there is no such folder, ValueError if it cannot be confined, ImportError
    without fsspec.
    """

    def __init__(self, place: str | os.PathLike[str], **options: Any) -> None:
        url_to_fs, local = _import_fsspec()
        self._fs, root = url_to_fs(os.fspath(place), **{"use_listings_cache": False, **options})
        self._is_local = isinstance(self._fs, local)
        if not self._is_local and any(isinstance(inner, local) for inner in _unwrapped(self._fs)):
            raise ValueError(
                f"{os.fspath(place)!r} wraps a folder of this machine, so links could lead out of it; "
                "give its path alone"
            )
        # In a web file system a path is part of a URL.
        self._is_web = bool({"http", "https"} & set(_protocols(self._fs)))
        self._root = os.path.realpath(root) if self._is_local else str(root)
        if not self._is_web and not self._fs.isdir(self._root):
            raise NotADirectoryError(f"There is no folder {os.fspath(place)!r}")

    def entries(self, path: str, offset: int, limit: int) -> tuple[list[FolderEntry], int]:
        """Return `limit` entries of a folder by name, from `offset` on, and the number of all entries.

        Raises FileNotFoundError, NotADirectoryError, PermissionError, OSError.
        """
        plain = normalized_path(path)
        with _hidden_root(path):
            place = self._resolve(plain)
            if not self._is_web and not self._fs.isdir(place):
                raise NotADirectoryError if self._fs.exists(place) else FileNotFoundError
            listed = self._fs.ls(place, detail=not self._is_local)
            named = {name: one for one in listed if (name := _name_in(place, one))}
            names = sorted(named)
            return [self._entry(name, named[name]) for name in names[offset : offset + limit]], len(names)

    def blocks(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield up to `length` bytes of a file from `offset` on, in blocks of at most 1 MiB.

        Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError.
        """
        plain = normalized_path(path)
        with _hidden_root(path), self._open(self._resolve(plain)) as file:
            if offset:
                file.seek(offset)
            remaining = length
            while remaining is None or remaining > 0:
                block = file.read(_BLOCK_BYTES if remaining is None else min(remaining, _BLOCK_BYTES))
                if not block:
                    return
                remaining = None if remaining is None else remaining - len(block)
                yield block

    def _open(self, place: str) -> Any:
        kind = self._fs.info(place)["type"]
        if kind != "file":
            # Opening a named pipe would wait for a writer.
            raise IsADirectoryError if kind == "directory" else PermissionError
        file = self._fs.open(place, "rb")
        if self._is_local and not self._is_unchanged(file, place):
            file.close()
            raise FileNotFoundError
        return file

    def _resolve(self, plain: str) -> str:
        """Return the place that a path leads to. Raises FileNotFoundError if it is outside the folder."""
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
    def _is_unchanged(file: Any, place: str) -> bool:
        """Return whether an open file is the one at a place, and no link has replaced it meanwhile."""
        return os.path.realpath(place) == place and os.path.samestat(os.fstat(file.fileno()), os.lstat(place))

    def _entry(self, name: str, info: Any) -> FolderEntry:
        shown = name.encode("utf-8", "backslashreplace").decode()
        if self._is_local:
            try:
                real = os.path.realpath(info)
                info = self._fs.info(real) if self._is_inside(real) else {}
            except OSError:  # it was deleted, or this process may not read it
                info = {}
        kind = info.get("type") if info.get("type") in _KINDS else "other"
        size = info.get("size") if kind == "file" else None
        return FolderEntry(name=shown, type=str(kind), size=size, modified=_modified(info))


def _import_fsspec() -> tuple[Any, Any]:
    # Imported here: it is an optional dependency.
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(missing_extra("Sharing a folder", "files", error)) from error
    return url_to_fs, LocalFileSystem


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _name_in(place: str, info: Any) -> str:
    """Return the name of an entry of `place`, the empty string for one of another folder."""
    path = str(info if isinstance(info, str) else info["name"]).strip("/")
    folder, _, name = path.rpartition("/")
    return name if folder == place.strip("/") else ""


def _unwrapped(fs: Any) -> Iterator[Any]:
    """Yield a file system, and those that it wraps."""
    while fs is not None:
        yield fs
        fs = getattr(fs, "fs", None)


def _modified(info: Mapping[str, Any]) -> datetime | None:
    for key in _TIME_FIELDS:
        value = info.get(key)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None


@contextmanager
def _hidden_root(path: str) -> Iterator[None]:
    """Replace errors by ones that name `path`, and not the place of the folder on this machine."""
    try:
        yield
    except Exception as error:
        kind = next((cls for cls in _TEXTS if isinstance(error, cls)), OSError)
        raise kind(f"{_TEXTS[kind]}: {path!r}") from error


_TEXTS: dict[type[OSError], str] = {
    FileNotFoundError: "There is no such file or folder",
    NotADirectoryError: "This is not a folder",
    IsADirectoryError: "This is a folder",
    PermissionError: "This file cannot be read: permission denied",
    OSError: "This file or folder cannot be read",
}

Path = Annotated[str, AfterValidator(normalized_path), Field(description="A path below the folder, as a/b")]


class FolderListing(Provider):
    """A page of the entries of a folder, sorted by name."""

    category: ClassVar[str] = "folders"
    path: Path = ""
    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=0, le=MAX_PAGE)

    def read(self, handler: Folder) -> PaginatedResponse[FolderEntry]:
        """Return a page of entries: name, type, size in bytes, time of the last change."""
        items, total = handler.entries(self.path, self.offset, self.limit)
        return PaginatedResponse[FolderEntry](items=items, total=total, limit=self.limit, offset=self.offset)


class FileContent(Provider):
    """The bytes of a file, or of a part of it."""

    category: ClassVar[str] = "files"
    content_type: ClassVar[str] = "application/octet-stream"
    path: Path
    offset: int = Field(default=0, ge=0)
    length: int | None = Field(default=None, ge=0)

    def read(self, handler: Folder) -> Iterator[bytes]:
        """Yield up to `length` bytes from `offset` on, in blocks."""
        return handler.blocks(self.path, self.offset, self.length)


def share_folder(manager: JobManager, folder: Folder, *, name: str, room: str = GLOBAL) -> dict[str, UUID]:
    """Let a room list a folder, as ``room:folders:name``, and read its files, as ``room:files:name``.

    Returns the providers' ids by their categories.
    """
    kinds: tuple[type[Any], ...] = (FolderListing, FileContent)
    return {
        kind.category: manager.register_provider(kind, name=name, handler=folder, room=room) for kind in kinds
    }
