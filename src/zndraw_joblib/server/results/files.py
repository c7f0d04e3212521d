"""A content store in a directory, which all servers of one database have to share."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.server.results import backends
from zndraw_joblib.wire.problems import ProblemException, ServiceUnavailable

_HAS_NO_NAME = ".part"


class FileContent:
    """A `ContentStore` in files below a directory. Reads and writes run in threads, at most 1 MiB each.

    A file gets its name after its last byte is on the disk.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a new key. `ttl` has no effect: files stay until they are deleted."""
        path = self._path(key)
        draft = path.with_suffix(_HAS_NO_NAME)
        try:
            file = await asyncio.to_thread(_create, draft)
            try:
                async for part in backends.rechunk(chunks):
                    await asyncio.to_thread(file.write, part)
                await asyncio.to_thread(_sync, file)
            finally:
                await asyncio.to_thread(file.close)
            await asyncio.to_thread(draft.replace, path)
        except OSError as error:
            await asyncio.to_thread(_delete, draft)
            if isinstance(error, ProblemException):  # of the upload, not of the directory
                raise
            raise _unavailable(error) from error
        except BaseException:
            await asyncio.to_thread(_delete, draft)
            raise

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts from `start` on."""
        path = self._path(key)
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(error) from error
        return size, _read(path, start)

    async def delete(self, key: str) -> None:
        """Delete a value, or what an interrupted upload has left of it."""
        path = self._path(key)
        for each in (path, path.with_suffix(_HAS_NO_NAME)):
            await asyncio.to_thread(_delete, each)

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, key: str) -> Path:
        name = key.rpartition(":")[2]
        return self._directory / name[:2] / name


def _create(path: Path) -> BinaryIO:
    """Create a file, and its folders, for their owner alone."""
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600), "wb"
    )


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _delete(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


async def _read(path: Path, start: int) -> AsyncIterator[bytes]:
    try:
        with await asyncio.to_thread(path.open, "rb") as file:
            await asyncio.to_thread(file.seek, start)
            while part := await asyncio.to_thread(file.read, PART_BYTES):
                yield part
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> ServiceUnavailable:
    # Without the path: clients do not need it.
    return ServiceUnavailable(f"The directory of the task results failed: {error.strerror}")
