"""The result of a provider request, as bytes in pieces."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from zndraw_joblib.worker.tasks import encode

_PIECE_BYTES = 256 * 1024


class ProviderRaised(Exception):
    """The provider itself raised `error`, perhaps after the first pieces."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error  # httpx drops the cause of an exception that it passes on


class ResultStream:
    """The bytes of a result, in pieces. If `length` is None they can be read once.

    The provider returns bytes; or an iterator of bytes, or a file, which are read in pieces; for ``text/…``
    a text instead of bytes; and for JSON any JSON value. Raises `ProviderRaised` if making the first piece
    fails.
    """

    def __init__(self, read: Callable[[], Any], content_type: str) -> None:
        try:
            self._value = read()
            whole = _whole(self._value, content_type)
            self.length = None if whole is None else len(whole)
            self._whole = whole
            self._stream = _pieces(self._value, content_type) if whole is None else iter(())
            self._first = next(self._stream, b"")
        # Not Exception: sys.exit() in a provider ends its request, not the worker.
        except BaseException as error:
            raise ProviderRaised(error) from error

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces."""
        if self._whole is not None:
            for start in range(0, len(self._whole), _PIECE_BYTES):
                yield bytes(self._whole[start : start + _PIECE_BYTES])
            return
        piece: bytes | None = self._first
        while piece is not None:
            yield piece
            try:
                piece = next(self._stream, None)
            except BaseException as error:
                raise ProviderRaised(error) from error

    def close(self) -> None:
        """Close a stream."""
        if self.length is None and callable(close := getattr(self._value, "close", None)):
            close()


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _whole(value: Any, content_type: str) -> memoryview | None:
    """Return the bytes of a complete value, None for a stream. Raises TypeError, ValueError."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _flat(value, content_type)
    if callable(getattr(value, "read", None)) or isinstance(value, Iterator):
        return None
    media_type = _media_type(content_type)
    if media_type == "application/json" or media_type.endswith("+json"):
        return memoryview(encode(to_jsonable_python(value)))
    return _flat(value, content_type)


def _pieces(stream: Any, content_type: str) -> Iterator[bytes]:
    is_file = callable(getattr(stream, "read", None))
    for piece in iter(partial(stream.read, _PIECE_BYTES), None) if is_file else stream:
        if data := bytes(_flat(piece, content_type)):
            yield data
        elif is_file:
            return


def _flat(value: Any, content_type: str) -> memoryview:
    if isinstance(value, str) and _media_type(content_type).startswith("text/"):
        return memoryview(value.encode())
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"The provider returned {type(value).__name__}; for {content_type} it must return bytes"
        ) from None
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())
