"""The queues that are compared, and how each is run: with the settings that were fastest for empty tasks."""

import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.environments import PROGRAMS, ROOT, NotInstalled, python_of, version_of

POSTGRESQL, VALKEY = "PostgreSQL", "Valkey"
_OLD = ROOT / ".venv-0.1.7" / "bin" / "python"


class Peer(NamedTuple):
    """A queue: `worker` starts one worker process, `backlog` is how many tasks it gets to execute.

    Commands begin with a program of its environment; `{url}` is the address of the server or the store, and
    `{slots}` how many tasks a process runs at once. Python 3.`minor` is the oldest that runs it.
    """

    name: str
    store: str
    program: str
    worker: list[str]
    settings: str
    backlog: int
    slots: int = 0
    is_bulk: bool = False
    package: str = ""
    is_served: bool = False
    minor: int = 11

    @property
    def python(self) -> str:
        """The interpreter of its environment; raises `NotInstalled`."""
        if self.program == "own_tasks.py":
            return sys.executable
        if self.is_served:
            if not _OLD.exists():
                raise NotInstalled("run `make peers` first")
            return str(_OLD)
        return str(python_of(self.name.split(",")[0], self.minor))

    @property
    def title(self) -> str:
        """The name with the version."""
        if not self.package:
            return self.name
        name, *rest = self.name.split(", ")
        return ", ".join([f"{name} {version_of(name, self.package)}", *rest])

    @property
    def how(self) -> str:
        """How its worker runs, for the table."""
        return self.settings.format(slots=self.slots)

    def command(self, url: str) -> list[str]:
        """Return the command of one worker process."""
        first, *rest = [part.format(url=url, slots=self.slots) for part in self.worker]
        return [self.python if first == "python" else str(Path(self.python).with_name(first)), *rest]


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
        "oban",
        POSTGRESQL,
        "oban_tasks.py",
        ["oban", "start", "--dsn", "{url}", "--queues", "default:{slots}", "--log-level", "WARNING"],
        "{slots} at once (default 10)",
        40_000,
        slots=300,
        is_bulk=True,
        package="oban",
        minor=12,
    ),
    Peer(
        "procrastinate",
        POSTGRESQL,
        "procrastinate_tasks.py",
        ["procrastinate", "--app=procrastinate_tasks.app", "worker", "-c", "{slots}"],
        "{slots} at once, LISTEN",
        4_000,
        slots=10,
        is_bulk=True,
        package="procrastinate",
    ),
    Peer(
        "pgqueuer",
        POSTGRESQL,
        "pgqueuer_tasks.py",
        ["python", "pgqueuer_tasks.py", "work", "{slots}"],
        "batches of {slots} (default 10)",
        40_000,
        slots=100,
        is_bulk=True,
        package="pgqueuer",
    ),
    Peer(
        "saq, PostgreSQL",
        POSTGRESQL,
        "saq_tasks.py",
        ["saq", "saq_tasks.settings"],
        "{slots} at once (default)",
        8_000,
        slots=10,
        package="saq",
    ),
    Peer(
        "saq, Valkey",
        VALKEY,
        "saq_tasks.py",
        ["saq", "saq_tasks.settings"],
        "{slots} at once (default)",
        8_000,
        slots=10,
        package="saq",
    ),
    Peer(
        "streaq",
        VALKEY,
        "streaq_tasks.py",
        ["streaq", "run", "streaq_tasks:worker"],
        "{slots} at once (default), results not stored",
        20_000,
        slots=16,
        is_bulk=True,
        package="streaq",
    ),
    Peer(
        "arq",
        VALKEY,
        "arq_tasks.py",
        ["arq", "arq_tasks.WorkerSettings"],
        "{slots} at once (default 10), a read every 10 ms",
        8_000,
        slots=400,
        package="arq",
    ),
    Peer(
        "taskiq",
        VALKEY,
        "taskiq_tasks.py",
        [
            "taskiq",
            "worker",
            "taskiq_tasks:broker",
            "--workers",
            "1",
            "--max-async-tasks",
            "{slots}",
            "--log-level",
            "WARNING",
        ],
        "streams with acknowledgement, {slots} at once (default)",
        8_000,
        slots=100,
        package="taskiq-redis",
    ),
    Peer(
        "dramatiq",
        VALKEY,
        "dramatiq_tasks.py",
        ["dramatiq", "dramatiq_tasks", "-p", "1", "-t", "{slots}"],
        "{slots} threads (default 8)",
        20_000,
        slots=32,
        package="dramatiq",
    ),
    Peer(
        "celery",
        VALKEY,
        "celery_tasks.py",
        ["celery", "-A", "celery_tasks", "worker", "-c", "{slots}", "-l", "WARNING"],
        "prefork, acknowledged before the run (default)",
        6_000,
        slots=1,
        package="celery",
    ),
]
