"""The queues that are compared, and how each is run: with the settings that its documentation recommends."""

import sys
from typing import NamedTuple

from benchmarks.peers.environments import PROGRAMS, ROOT, python_of, version_of

POSTGRESQL, VALKEY = "PostgreSQL", "Valkey"
_OLD = ROOT / ".venv-0.1.7" / "bin" / "python"


class Peer(NamedTuple):
    """A queue: `worker` starts one worker process, `backlog` is how many tasks it gets to execute.

    Commands begin with a program of its environment; `{url}` is the address of the server or the store.
    """

    name: str
    store: str
    program: str
    worker: list[str]
    settings: str
    backlog: int
    is_bulk: bool = False
    package: str = ""
    is_served: bool = False

    @property
    def python(self) -> str:
        """The interpreter of its environment."""
        if self.is_served:
            return sys.executable if self.program == "own_tasks.py" else str(_OLD)
        return str(python_of(self.name.split(",")[0]))

    @property
    def title(self) -> str:
        """The name with the version."""
        if not self.package:
            return self.name
        name, *rest = self.name.split(", ")
        return ", ".join([f"{name} {version_of(name, self.package)}", *rest])

    def command(self, url: str) -> list[str]:
        """Return the command of one worker process."""
        first, *rest = [part.format(url=url) for part in self.worker]
        folder = self.python.rpartition("/")[0]
        return [self.python if first == "python" else f"{folder}/{first}", *rest]


_OWN_PROGRAM = str(PROGRAMS / "own_tasks.py")
_OWN_WORKER = [
    "python",
    "-m",
    "zndraw_joblib",
    "worker",
    _OWN_PROGRAM,
    "--url",
    "{url}",
    "--log-level",
    "warning",
]

PEERS = [
    Peer(
        "this queue, SQLite",
        "SQLite",
        "own_tasks.py",
        _OWN_WORKER,
        "defaults",
        20_000,
        is_bulk=True,
        is_served=True,
    ),
    Peer(
        "this queue, PostgreSQL",
        POSTGRESQL,
        "own_tasks.py",
        _OWN_WORKER,
        "defaults",
        20_000,
        is_bulk=True,
        is_served=True,
    ),
    Peer(
        "worker of 0.1.7 on this server",
        POSTGRESQL,
        "old_tasks.py",
        ["python", str(PROGRAMS / "old_tasks.py"), "work"],
        "defaults",
        1_000,
        is_served=True,
    ),
    Peer(
        "procrastinate",
        POSTGRESQL,
        "procrastinate_tasks.py",
        ["procrastinate", "--app=procrastinate_tasks.app", "worker", "-c", "10"],
        "10 at once, LISTEN",
        4_000,
        is_bulk=True,
        package="procrastinate",
    ),
    Peer(
        "pgqueuer",
        POSTGRESQL,
        "pgqueuer_tasks.py",
        ["python", "pgqueuer_tasks.py", "work", "10"],
        "batches of 10 (default)",
        20_000,
        is_bulk=True,
        package="pgqueuer",
    ),
    Peer(
        "pgqueuer, batches of 100",
        POSTGRESQL,
        "pgqueuer_tasks.py",
        ["python", "pgqueuer_tasks.py", "work", "100"],
        "batches of 100",
        40_000,
        is_bulk=True,
        package="pgqueuer",
    ),
    Peer(
        "arq",
        VALKEY,
        "arq_tasks.py",
        ["arq", "arq_tasks.WorkerSettings"],
        "100 at once, a read every 10 ms",
        8_000,
        package="arq",
    ),
    Peer(
        "taskiq",
        VALKEY,
        "taskiq_tasks.py",
        ["taskiq", "worker", "taskiq_tasks:broker", "--workers", "1", "--log-level", "WARNING"],
        "streams with acknowledgement, 100 at once (default)",
        8_000,
        package="taskiq-redis",
    ),
    Peer(
        "dramatiq",
        VALKEY,
        "dramatiq_tasks.py",
        ["dramatiq", "dramatiq_tasks", "-p", "1", "-t", "8"],
        "8 threads (default)",
        6_000,
        package="dramatiq",
    ),
    Peer(
        "celery",
        VALKEY,
        "celery_tasks.py",
        ["celery", "-A", "celery_tasks", "worker", "-c", "1", "-l", "WARNING"],
        "prefork, acknowledged before the run (default)",
        6_000,
        package="celery",
    ),
]
