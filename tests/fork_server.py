"""Forks processes of this package. It loads the package once, because that takes most of the time of a start.

Each request is a packet with the descriptors of the new process: its end of a socket for the process id and
the exit code, standard input, output and error, and those that it inherits beside them.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any

PACKET = 150_000
# The number of the first descriptor that a process inherits beside its standard ones.
FIRST_DESCRIPTOR = 100
_LOADED = (
    *("aiosqlite", "asyncpg", "sqlalchemy.dialects.sqlite.aiosqlite", "uvloop"),
    *("uvicorn", "uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.protocols.http.auto"),
    "uvicorn.protocols.websockets.auto",
    *("zndraw_joblib.server.host.app", "zndraw_joblib.worker.manager", "zndraw_joblib.client.queue"),
)


def load() -> None:
    """Import what commands and servers import when they start."""
    for name in _LOADED:
        importlib.import_module(name)
    package = importlib.import_module("zndraw_joblib.cli")
    for module in pkgutil.walk_packages(package.__path__, "zndraw_joblib.cli."):
        importlib.import_module(module.name)
    assert threading.active_count() == 1, "a fork has only one thread"
    gc.collect()
    gc.freeze()


class ForkServer:
    """Forks a process for each request, and reports its end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, tuple[int, socket.socket]] = {}
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)

    def serve(self) -> dict[str, Any] | None:
        """Return the request in each new process. Return None in this one when its tests have ended."""
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor in self._children:
                    self._report(descriptor)
                    continue
                packet, descriptors, *_ = socket.recv_fds(self._control, PACKET, 16)
                if not packet:
                    return None
                if self._fork(descriptors):
                    request: dict[str, Any] = json.loads(packet)
                    return request

    def _fork(self, descriptors: list[int]) -> bool:
        """Return whether this is the new process, whose descriptors are those of the request."""
        status = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if pid == 0:
            for each in (self._control, status, *(socket for _, socket in self._children.values())):
                each.close()
            for descriptor in self._children:
                os.close(descriptor)
            for number, descriptor in enumerate(descriptors[1:]):
                os.dup2(descriptor, number if number < 3 else FIRST_DESCRIPTOR + number - 3)
                os.close(descriptor)
            return True
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        status.send(b"%d" % pid)
        ended = os.pidfd_open(pid)
        self._children[ended] = pid, status
        self._poller.register(ended, select.POLLIN)
        return False

    def _report(self, ended: int) -> None:
        pid, status = self._children.pop(ended)
        self._poller.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with status, suppress(BrokenPipeError):  # the test has ended
            status.send(b"%d" % code)


def run(request: dict[str, Any]) -> None:
    """Run a module or code as the main program, as `python -m` and `python -c` do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [sys.argv[0], *request["arguments"]]
    sys.path[0] = request["cwd"]
    if request["module"] is not None:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    else:
        exec(request["code"], {"__name__": "__main__"})  # noqa: S102 - as `python -c`


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    asked = ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
    if asked is not None:
        run(asked)
