"""Ids of new tasks: UUIDs of version 7, which begin with the time.

Neighbours in time are neighbours in the index of ids. With random ids a batch of tasks changes as many pages
of a long table's index as it has tasks.
"""

import os
import time
from uuid import UUID

# The bits of version and variant.
_FIXED_BITS = (0xF << 76) | (0x3 << 62)
_VERSION_7 = (0x7 << 76) | (0x2 << 62)


def new_ids(count: int) -> list[UUID]:
    """Return ids for new tasks."""
    now = time.time_ns() // 1_000_000 << 80
    random = os.urandom(10 * count)
    numbers = [int.from_bytes(random[start : start + 10]) for start in range(0, 10 * count, 10)]
    return [UUID(int=now | (number & ~_FIXED_BITS) | _VERSION_7) for number in numbers]
