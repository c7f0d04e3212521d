"""A lock that allows one server process per SQLite file. The system releases it when the process ends."""

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zndraw_joblib.cli.errors import CommandError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.getLogger(__name__)
_SUFFIX = "-server"
_MAX_OWNER_BYTES = 300
# On Windows no other process can read locked bytes, so the lock is on a byte after the text.
_LOCKED_BYTE = 1 << 20
_TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})


@contextmanager
def only_server(database: Path | None, url: str) -> Iterator[None]:
    """Hold the lock of an SQLite file for the server at `url`; do nothing for any other database.

    Raises `CommandError` while another server process holds the lock. On a file system without locks, it
    only logs a warning.
    """
    if database is None or not database.parent.is_dir():
        yield
        return
    file = database.resolve()
    descriptor = os.open(f"{file}{_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, file)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()}, {url}".encode()[:_MAX_OWNER_BYTES])
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, file: Path) -> None:
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno not in _TAKEN:
            logger.warning("Cannot lock %s%s: %s. Start only one server on this file", file, _SUFFIX, error)
            return
        os.lseek(descriptor, 0, os.SEEK_SET)
        owner = os.read(descriptor, _MAX_OWNER_BYTES).decode(errors="replace").strip()
        raise CommandError(
            f"The SQLite file {file} is in use by another server ({owner or 'starting'}). SQLite allows one "
            "server process. Stop that server, or name another database with --database-url: another file, "
            "or postgresql://user:password@host/name for several servers"
        ) from error


def _lock(descriptor: int) -> None:
    # A forked child, which may outlive the server, does not inherit locks of fcntl.
    if sys.platform == "win32":
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
