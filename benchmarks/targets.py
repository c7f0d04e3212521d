"""The targets: a limit of a figure's value, or of its ratio to the no-op endpoint, on two shared cores."""

from benchmarks.pages import PAGES


def _both(sqlite: str, postgresql: str | None = None) -> dict[str, str]:
    return {"sqlite": sqlite, "postgresql": postgresql or sqlite}


TARGETS: dict[tuple[str, str], dict[str, str]] = {
    ("rates", "submit, 16 connections"): _both("ratio >= 1.0", "ratio >= 0.8"),
    ("rates", "claim, 16 connections"): _both("ratio >= 0.9", "ratio >= 0.7"),
    ("rates", "life cycle, 16 connections"): _both("ratio >= 0.9", "ratio >= 0.7"),
    ("latencies", "lone submit, p50"): _both("<= 0.7", "<= 1.3"),
    ("latencies", "submit to waiting claim, p95"): _both("<= 3", "<= 4"),
    ("latencies", "completion to waiting submitter, p95"): _both("<= 3", "<= 4"),
    ("batch", "submit, 1,000 per request"): _both(">= 20,000"),
    ("batch", "claim and report, 1,000 per request"): _both(">= 10,000", ">= 8,000"),
    ("worker", "lone task, submit to completed, p50"): _both("<= 4", "<= 7"),
    ("worker", "lone task, submit to completed, p95"): _both("<= 7", "<= 11"),
    ("worker", "1 process"): _both("ratio >= 1.2"),
    ("worker", "4 processes"): _both("ratio >= 1.5"),
    ("backlog", "list 50, 250,000 pending"): _both("<= 5"),
    ("backlog", "read one, 250,000 pending"): _both("<= 5"),
    ("backlog", "submit, 250,000 pending ÷ none"): _both("<= 1.2"),
    ("backlog", "claim, 250,000 pending ÷ none"): _both("<= 1.2"),
    ("watched", "completed"): _both(">= 490"),
    ("watched", "due to completed at a reader, p50"): _both("<= 30"),
    ("watched", "due to completed at a reader, p95"): _both("<= 100"),
    ("watched", "completions that no reader got"): _both("<= 0"),
    ("jobs", "claim, 1,000 jobs ÷ 1 job"): _both("<= 1.5"),
    ("jobs", "empty claim, 1,000 jobs"): _both("<= 2"),
    ("jobs", "submit to waiting claim, 1,000 jobs"): _both("<= 4"),
    ("start", "serve until it is ready"): _both("<= 1.0"),
    ("start", "memory then"): _both("<= 90"),
    ("start", "import JobManager, processor time"): _both("<= 250"),
    ("start", "zndraw-joblib --help, processor time"): _both("<= 250"),
    ("fanout", "event to 1,000 clients"): _both("<= 15"),
    ("dead-workers", "10,000 dead workers removed"): _both("<= 1"),
    ("dead-workers", "heartbeat meanwhile, p95"): _both("<= 10"),
    **{("control", f"{name}, p95"): _both("<= 20" if name == "metrics" else "<= 50") for name in PAGES},
}
