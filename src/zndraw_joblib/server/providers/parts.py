"""Bytes in parts: a result backend writes and returns at most `PART_BYTES` at once."""

from collections.abc import AsyncIterator, Iterator

from zndraw_joblib.server.ports import PART_BYTES


async def stream(data: bytes, start: int = 0) -> AsyncIterator[bytes]:
    """Return bytes from `start` on as a stream of parts."""
    for part in _split(data, start):
        yield part


async def rechunk(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the bytes of a stream in full parts; only the last one may be shorter."""
    buffer = bytearray()
    async for chunk in chunks:
        for part in _split(chunk):
            if not buffer and len(part) == PART_BYTES:
                yield part
                continue
            buffer += part
            if len(buffer) >= PART_BYTES:
                yield bytes(memoryview(buffer)[:PART_BYTES])
                del buffer[:PART_BYTES]
    if buffer:
        yield bytes(buffer)


def _split(data: bytes, first: int = 0) -> Iterator[bytes]:
    return (data[start : start + PART_BYTES] for start in range(first, len(data), PART_BYTES))
