"""The result of a task as it is sent: JSON in the report, or content that is uploaded before the report.

A value of at most 1 MiB as JSON is sent in the report. Larger values, bytes, files and images are content.
"""

import io
import json
import mimetypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from inspect import isabstract
from math import prod
from pathlib import Path, PurePath
from shutil import copyfileobj
from typing import IO, Any

from zndraw_joblib.jobs import library_codecs  # noqa: F401 - it registers its codecs
from zndraw_joblib.jobs.codecs import NotSerializable, codec_of, decode_json, encode, plain
from zndraw_joblib.jobs.failures import text_of
from zndraw_joblib.jobs.outputs import UnusableResult
from zndraw_joblib.wire.messages import MAX_JSON_BYTES

JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"
ARRAY_TYPE = "application/x-npy"
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file that a job returns as its result; it must stay until the task is completed.

    `content_type` is guessed from the name by default; `filename` is the name under which clients save it,
    by default that of the file.
    """

    path: str | PurePath
    content_type: str | None = None
    filename: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a result that is uploaded, in memory or in a file, which may be `temporary`."""

    data: bytes | Path
    content_type: str
    size: int
    filename: str | None = None
    temporary: bool = False

    def pieces(self) -> Iterator[bytes]:
        """Yield exactly `size` bytes in pieces of 256 KiB. Raises OSError for a file that is shorter now."""
        missing = self.size
        with io.BytesIO(self.data) if isinstance(self.data, bytes) else self.data.open("rb") as file:
            while missing and (piece := file.read(min(_PIECE_BYTES, missing))):
                yield piece
                missing -= len(piece)
        if missing:
            raise OSError(f"the file {self.data!s:.200} has become {missing:,} bytes shorter")

    def in_file(self) -> "Content":
        """Return the same content, in a temporary file if it is large: it can be sent to another process."""
        if isinstance(self.data, Path) or self.size <= MAX_JSON_BYTES:
            return self
        with _temporary_file() as file:
            file.write(self.data)
        return Content(Path(file.name), self.content_type, self.size, self.filename, temporary=True)

    def discard(self) -> None:
        """Delete a temporary file."""
        if self.temporary and isinstance(self.data, Path):
            with suppress(OSError):
                self.data.unlink()


def encode_result(value: Any) -> bytes | Content:
    """Return what a job returned as JSON of at most 1 MiB, or as content.

    Raises `NotSerializable` for a value that cannot be encoded, and any exception of the value's own code.
    """
    if value is None:
        return b"null"
    content = _content_of(value)
    if content is not None:
        return content
    encoded = encode(value)
    if len(encoded) <= MAX_JSON_BYTES:
        return encoded
    return Content(encoded, JSON_TYPE, len(encoded))


def decode_content(content: bytes, content_type: str) -> Any:
    """Return content as the value that was encoded; content of other types stays bytes.

    Raises ValueError for invalid content.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON_TYPE:
        return decode_json(content)
    if kind == ARRAY_TYPE:
        try:
            return _loaded_array(content)
        except ImportError:  # only those who read arrays have NumPy
            return content
    return content


def plain_content(content: bytes, content_type: str, loads: Callable[[bytes], Any] = json.loads) -> Any:
    """Return content as plain JSON values, in which `codecs.decode` finds what was encoded.

    `loads` parses JSON. Raises `UnusableResult` for invalid content, such as JSON Lines that are called JSON.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == JSON_TYPE:
            return loads(content)
        return plain(decode_content(content, content_type), "result")
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UnusableResult(f"The content of a result is no valid {kind}: {text_of(error)}") from error


def _loaded_array(content: bytes) -> Any:
    """Return the array of a file in NumPy's format. Raises ValueError, before it allocates memory."""
    file_format = import_module("numpy").lib.format
    file = io.BytesIO(content)
    is_first = file_format.read_magic(file) == (1, 0)
    # The third version differs from the second in the encoding of names only.
    read_header = file_format.read_array_header_1_0 if is_first else file_format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    size, rest = prod(shape) * dtype.itemsize, len(content) - file.tell()
    if size > rest:
        raise ValueError(f"The content is no array: {size} bytes should follow its header, not {rest}")
    file.seek(0)
    return file_format.read_array(file, allow_pickle=False)


def _content_of(value: Any) -> Content | None:
    """Return content for bytes, files, images and large arrays; None for other values."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return Content(data, BINARY_TYPE, len(data))
    if isinstance(value, ResultFile | PurePath):
        return _of_path(value if isinstance(value, ResultFile) else ResultFile(value))
    if isinstance(value, io.IOBase) or hasattr(value, "readinto"):
        return _of_file(value)
    return _of_library(value)


def _of_library(value: Any) -> Content | None:
    if (
        _has_name(type(value), "numpy.ndarray")
        and value.nbytes > MAX_JSON_BYTES // 2
        and not value.dtype.hasobject
    ):
        return _saved(lambda file: sys.modules["numpy"].save(file, value), ARRAY_TYPE)
    if _has_name(type(value), "PIL.Image"):
        return _saved(lambda file: value.save(file, format="PNG"), "image/png")
    if _has_name(type(value), "matplotlib.Figure"):
        return _saved(lambda file: value.savefig(file, format="png"), "image/png")
    return None


def can_encode(cls: Any) -> bool:
    """Return whether objects of a class may be results: false only for a class of which none can be one."""
    if not isinstance(cls, type) or cls in {object, Any} or isabstract(cls) or is_dataclass(cls):
        return True
    if codec_of(cls) is not None or any(_has_name(cls, name) for name in ("PIL.Image", "matplotlib.Figure")):
        return True
    modules = {*sys.stdlib_module_names, "pydantic"}
    return any(base.__module__.partition(".")[0] in modules for base in cls.__mro__ if base is not object)


def _has_name(cls: type[Any], name: str) -> bool:
    return any(f"{base.__module__.partition('.')[0]}.{base.__qualname__}" == name for base in cls.__mro__)


def _of_path(file: ResultFile) -> Content:
    path = Path(file.path)
    if not path.is_file():
        raise NotSerializable(
            "result", f"there is no file {str(path)!r}. Return a file that exists, or str(path) for its name"
        )
    kind = file.content_type or mimetypes.guess_type(path.name)[0] or BINARY_TYPE
    return Content(path.absolute(), kind, path.stat().st_size, file.filename or path.name)


def _of_file(file: Any) -> Content:
    """Return the content of an open binary file from its beginning, and close the file."""
    if isinstance(file, io.TextIOBase):
        raise NotSerializable(
            "result", "the file is open for text. Open it in binary mode, like open(…, 'rb')"
        )
    with file:
        if isinstance(file, io.BytesIO):
            return Content(file.getvalue(), BINARY_TYPE, file.getbuffer().nbytes)
        if file.seekable():
            file.seek(0)
        name = getattr(file, "name", None)
        filename = os.path.basename(name) if isinstance(name, str) else None
        kind = mimetypes.guess_type(filename or "")[0] or BINARY_TYPE
        return _saved(lambda target: copyfileobj(file, target, _PIECE_BYTES), kind, filename)


def _saved(save: Any, content_type: str, filename: str | None = None) -> Content:
    """Return what a function writes into a temporary file."""
    with _temporary_file() as file:
        path = Path(file.name)
        try:
            save(file)
        except BaseException:
            path.unlink()
            raise
    return Content(path, content_type, path.stat().st_size, filename, temporary=True)


def _temporary_file() -> IO[bytes]:
    return tempfile.NamedTemporaryFile(prefix="zndraw-joblib-result-", delete=False)
