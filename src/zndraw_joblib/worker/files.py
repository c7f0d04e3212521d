"""Providers over a folder: what is in it, and what is in its files."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import AfterValidator, Field

from zndraw_joblib.contract.extensions import Provider
from zndraw_joblib.contract.messages import MAX_PAGE, PaginatedResponse
from zndraw_joblib.contract.names import GLOBAL
from zndraw_joblib.worker.folders import Entry, Folder, checked_path
from zndraw_joblib.worker.manager import JobManager

Path = Annotated[str, AfterValidator(checked_path), Field(description="Below the folder, by slashes: a/b")]


class FolderListing(Provider):
    """A page of what is in a folder, by name."""

    category: ClassVar[str] = "folders"
    path: Path = ""
    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=0, le=MAX_PAGE)

    def read(self, handler: Folder) -> PaginatedResponse[Entry]:
        """Return a page of entries: name, type, size in bytes, time of the last change."""
        items, total = handler.entries(self.path, self.offset, self.limit)
        return PaginatedResponse[Entry](items=items, total=total, limit=self.limit, offset=self.offset)


class FileContent(Provider):
    """The bytes of a file, or of a part of it."""

    category: ClassVar[str] = "files"
    content_type: ClassVar[str] = "application/octet-stream"
    path: Path
    offset: int = Field(default=0, ge=0)
    length: int | None = Field(default=None, ge=0)

    def read(self, handler: Folder) -> Iterator[bytes]:
        """Give the bytes in blocks: from `offset` on, `length` at most."""
        return handler.blocks(self.path, self.offset, self.length)


def share_folder(manager: JobManager, folder: Folder, *, name: str, room: str = GLOBAL) -> dict[str, UUID]:
    """Let a room list a folder, as ``room:folders:name``, and read its files, as ``room:files:name``.

    Returns the providers' ids by their categories.
    """
    kinds: tuple[type[Any], ...] = (FolderListing, FileContent)
    return {
        kind.category: manager.register_provider(kind, name=name, handler=folder, room=room) for kind in kinds
    }
