"""What a read came to, as bytes, however it was given."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from zndraw_joblib.worker.tasks import encode

_PIECE_BYTES = 256 * 1024


class BrokenOff(Exception):
    """The read itself raised `fault`, be it after the first of its bytes."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(fault)
        self.fault = fault  # the HTTP library forgets the cause of an exception that it passes on


class Answer:
    """The bytes of a read, in pieces. One whose `length` is unknown is a stream, and is there once.

    `value` is bytes or the like; an iterator of bytes, or a file, which are read piece by piece; for
    ``text/…`` a text in place of bytes; and for JSON whatever JSON can say. Raises `BrokenOff`, where the
    first piece fails at once.
    """

    def __init__(self, make: Callable[[], Any], content_type: str) -> None:
        try:
            self._value = make()
            whole = _whole(self._value, content_type)
            self.length = None if whole is None else len(whole)
            self._whole = whole
            self._stream = _pieces(self._value, content_type) if whole is None else iter(())
            self._first = next(self._stream, b"")
        # Not Exception: sys.exit() in a provider ends its read, not the worker.
        except BaseException as error:
            raise BrokenOff(error) from error

    def __iter__(self) -> Iterator[bytes]:
        """Give the pieces."""
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
                raise BrokenOff(error) from error

    def close(self) -> None:
        """Close a stream."""
        if self.length is None and callable(close := getattr(self._value, "close", None)):
            close()


def is_json(content_type: str) -> bool:
    """Tell whether bytes of this type are JSON."""
    kind = _kind(content_type)
    return kind == "application/json" or kind.endswith("+json")


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _whole(value: Any, content_type: str) -> memoryview | None:
    """Return bytes that are all there, None for a stream. Raises TypeError, ValueError."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _flat(value, content_type)
    if callable(getattr(value, "read", None)) or isinstance(value, Iterator):
        return None
    if is_json(content_type):
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
    if isinstance(value, str) and _kind(content_type).startswith("text/"):
        return memoryview(value.encode())
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"A read of {content_type} gives bytes, not {type(value).__name__}") from None
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())
