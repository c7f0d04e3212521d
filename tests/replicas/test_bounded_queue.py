"""The queue of messages between servers is bounded by count and by bytes."""

import logging

import pytest

from zndraw_joblib.server.process.pubsub import BoundedQueue, QueueBounds

MIB = 2**20


def queue(items: int = 3, size: int = 100) -> BoundedQueue[str]:
    """Return an empty queue with these bounds."""
    return BoundedQueue("texts", len, lambda: QueueBounds(items, size))


def test_the_oldest_items_are_dropped() -> None:
    """By count, and by bytes."""
    by_count, by_bytes = queue(), queue(items=100)
    for number in range(5):
        by_count.put(str(number))
        by_bytes.put(str(number) * 40)
    assert by_count.pop_all() == ["2", "3", "4"]
    assert by_bytes.pop_all() == ["3" * 40, "4" * 40]
    assert (by_count.dropped, by_bytes.dropped) == (2, 3)
    by_bytes.put("x" * 101)
    assert (len(by_bytes), by_bytes.dropped) == (0, 4)


def test_items_that_were_put_back_come_first() -> None:
    """They are the first to be dropped, too."""
    texts = queue()
    texts.put("b")
    texts.put_back(["x", "a"])
    assert texts.pop() == "x"
    texts.put_back(["y", "z"])
    assert texts.pop_all() == ["z", "a", "b"]


def test_a_burst_of_drops_is_logged_twice(caplog: pytest.LogCaptureFixture) -> None:
    """At its start, and with the number at its end."""
    caplog.set_level(logging.WARNING)
    texts = queue()
    for _ in range(2):
        for number in range(10):
            texts.put(str(number))
            texts.log_drops()
        texts.pop_all()
        texts.log_drops()
    assert [record.getMessage().split(":")[-1] for record in caplog.records] == [
        " dropping the oldest",
        "Dropped 7 texts",
    ] * 2


def test_the_default_bounds_apply_to_memory() -> None:
    """10,000 messages of 64 KiB do not stay."""
    texts = BoundedQueue[bytes]("texts", len)
    part = b"x" * 65536
    for _ in range(10_000):
        texts.put(part)
    assert len(texts) == 16 * MIB // 65536
