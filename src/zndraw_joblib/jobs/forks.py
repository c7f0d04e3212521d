"""Give processes that a job forks default signal handlers, and prevent them from acting as the worker."""

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_lock = threading.Lock()
_blocked = threading.local()
_active = 0


@contextmanager
def default_signals_in_forks() -> Iterator[None]:
    """Give processes that are forked during this block the default handlers of SIGINT and SIGTERM.

    A forked process inherits its parent's handlers, and the pipe through which the parent's event loop
    receives signals: SIGTERM would stop the parent instead of the forked process. Ignored signals stay
    ignored.
    """
    global _active  # noqa: PLW0603 - the hooks of forks belong to the process
    with _lock:
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1


def exit_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process if it is not process `pid`: a job forked it, and it returned from the job's code.

    Its exit code is that of `error`, if it is a SystemExit, and 1 otherwise: the result of a forked process
    is not that of the task.
    """
    if os.getpid() == pid:
        return
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    else:
        code = 1
        log.error(
            "Process %d, which a job of process %d forked, returned from the job's code. It ends: only "
            "process %d is the worker. End a forked process with os._exit, or use multiprocessing",
            *(os.getpid(), pid, pid),
        )
        if error is not None:
            traceback.print_exception(error)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def check_not_forked(pid: int) -> None:
    """Raise RuntimeError if this process is not process `pid`, which owns the worker."""
    if os.getpid() != pid:
        raise RuntimeError(
            f"Process {os.getpid()} was forked from the worker's process {pid}, and is not the worker: only "
            f"process {pid} may claim and report. Create a JobManager in the forked process, or exit"
        )


def _before() -> None:
    # A signal that arrives before the handlers are reset would be lost, or reach the parent.
    _blocked.former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if _active else None


def _in_parent() -> None:
    if (former := getattr(_blocked, "former", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _in_child() -> None:
    former = getattr(_blocked, "former", None)
    if former is None:
        return
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        if callable(signal.getsignal(number)):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_SETMASK, former)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
