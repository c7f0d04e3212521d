"""A program that ends the processes of a worker's tasks when the worker has ended, however that happened.

A worker that is killed cannot end them, and native code that holds Python's lock never notices it. The worker
starts this file without the package, as ``python guardian.py PID``, and writes lines to its standard input:
``+1234`` for a process group that has started, ``-1234`` for one that has ended.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

_CHECK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05


def follow(parent: int) -> set[int]:
    """Return the ids of the process groups that are left once the process `parent` has ended."""
    groups: set[int] = set()
    rest = b""
    # A process that the worker forked may keep the pipe open: its end is not enough.
    while os.getppid() == parent:
        if not select.select([0], [], [], _CHECK_SECONDS)[0]:
            continue
        received = os.read(0, 65536)
        if not received:
            break
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            change = groups.add if line.startswith(b"+") else groups.discard
            change(int(line[1:]))
    return groups


def end(groups: set[int]) -> None:
    """Send SIGTERM to process groups, and SIGKILL to those that are left after 5 seconds."""
    groups = {group for group in groups if send(group, signal.SIGTERM)}
    deadline = time.monotonic() + _GRACE_SECONDS
    while groups and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        groups = {group for group in groups if send(group, 0)}
    for group in groups:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """Send a signal to a process group, or to a process that leads none yet; return whether there is one."""
    return _succeeds(os.killpg, group, number) or _succeeds(os.kill, group, number)


def _succeeds(call: Callable[[int, int], None], target: int, number: int) -> bool:
    # PermissionError: macOS, if all processes of the group have ended and one is not reaped yet.
    with suppress(ProcessLookupError, PermissionError):
        call(target, number)
        return True
    return False


if __name__ == "__main__":
    # A service manager sends them to all processes of a worker, which then lets running tasks finish.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    end(follow(int(sys.argv[1])))
