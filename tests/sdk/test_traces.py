"""Spans of the SDK: a submit sends its context; claims and runs have spans, linked or as children."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from spans import Spans, global_spans, links_of, traceparent_of
from waiting import wait_until

from sdk.live import LiveServer
from sdk.traced_jobs import Traced, TracedLater
from zndraw_joblib.jobs.logs import LogFields
from zndraw_joblib.jobs.traces import current_traceparent
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]


def submit_in_span(spans: Spans, manager: JobManager, *jobs: Any) -> tuple[Any, list[str]]:
    """Submit tasks in a span; return its context and the ids."""
    with spans.provider.get_tracer("test").start_as_current_span("submitter") as span:
        if len(jobs) == 1:
            return span.get_span_context(), [manager.submit(jobs[0])]
        return span.get_span_context(), [str(each) for each in manager.submit_many(jobs)]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_runs_link_to_their_submits(
    own_server: Callable[..., LiveServer], worker: Make, executor: str
) -> None:
    """Each run has a trace of its own, in which the job runs; a claim links to all submits of its tasks."""
    with own_server().connect() as api:
        manager = worker(Runner(), at=api, executor=executor)
        manager.workers()
        with global_spans() as spans:
            for cls in (Traced, TracedLater):
                manager.register(cls)
            submitter, ids = submit_in_span(spans, manager, Traced(), TracedLater())
            found = [manager.wait_for(task_id, 60).result for task_id in ids]
            runs = [spans.wait_for(f"run @global:analysis:{name}")[0] for name in ("Traced", "TracedLater")]
            assert found == list(map(traceparent_of, runs))
            for run, task_id in zip(runs, ids, strict=True):
                assert (run.parent, links_of(run)) == (None, [submitter.span_id])
                assert run.get_span_context().trace_id != submitter.trace_id
                assert run.kind is SpanKind.CONSUMER
                attributes = run.attributes or {}
                assert attributes["messaging.message.id"] == task_id
                assert attributes["messaging.client.id"] == str(manager.worker_id)
                assert (attributes["zndraw_joblib.attempt"], attributes["zndraw_joblib.outcome"]) == (
                    1,
                    "completed",
                )
            claims = spans.named("claim")
            assert {link for claim in claims for link in links_of(claim)} == {submitter.span_id}
            manager.disconnect()
    assert current_traceparent() is None


def test_a_run_is_a_child_of_the_span_of_its_submit(
    own_server: Callable[..., LiveServer], worker: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """From the submitter over the server's spans to the run, one trace; a failure has its exception."""
    caplog.handler.addFilter(fields := LogFields())
    with global_spans() as spans, own_server().connect() as api:
        manager = worker(Runner(), at=api, run_spans="child")
        manager.register(Traced)
        submitter, [task_id] = submit_in_span(spans, manager, Traced(fail=True))
        assert manager.wait_for(task_id, 60).status == "failed"
        [run] = spans.wait_for("run @global:analysis:Traced")
        wait_until(lambda: any("failed after" in record.getMessage() for record in caplog.records))
        manager.disconnect()
        [submit] = spans.named("submit @global:analysis:Traced")
        ancestors = {span.get_span_context().span_id: span for span in spans.all}
    caplog.handler.removeFilter(fields)
    assert run.parent is not None
    assert ancestors[run.parent.span_id] is submit
    span = submit
    while span.parent is not None and span.parent.span_id != submitter.span_id:
        span = ancestors[span.parent.span_id]
    assert run.get_span_context().trace_id == submitter.trace_id
    assert run.status.status_code is StatusCode.ERROR
    [event] = run.events
    assert (event.attributes or {})["exception.type"] == "KeyError"
    assert "missing" in str((event.attributes or {})["exception.stacktrace"])
    [logged] = [record for record in caplog.records if "failed after" in record.getMessage()]
    assert logged.__dict__["trace_id"] == f"{submitter.trace_id:032x}"


class Broken(SpanProcessor):
    """Raises when a claim's span starts, and when that of a run ends."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Raise for a claim."""
        if span.name == "claim":
            raise RuntimeError("no claim")

    def on_end(self, span: Any) -> None:
        """Raise for a run."""
        if span.name.startswith("run "):
            raise RuntimeError("no run")


def test_tasks_end_although_the_tracer_provider_fails(
    own_server: Callable[..., LiveServer], worker: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a claimed task nor one that has run stays held for ever, in a thread and in a coroutine."""
    with global_spans() as spans, own_server().connect() as api:
        spans.provider.add_span_processor(Broken())
        manager = worker(Runner(), at=api, concurrency=1)
        for cls in (Traced, TracedLater):
            manager.register(cls)
        tasks = [manager.submit(cls()) for cls in (Traced, TracedLater, Traced)]
        assert [manager.wait_for(task, 60).status for task in tasks] == ["completed"] * 3
        manager.disconnect()
    texts = [record.getMessage() for record in caplog.records]
    assert any("A claim has no span" in text for text in texts)
    assert sum("did not end: the tracer provider failed" in text for text in texts) == 3


def test_without_a_span_of_its_own_a_job_passes_the_context_on(
    own_server: Callable[..., LiveServer], worker: Make
) -> None:
    """A worker without a tracer provider sends the context of the task with what its job submits."""
    context = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))
    with own_server().connect() as api:
        manager = worker(
            lambda task: [task.traceparent, current_traceparent()], at=api, run_spans="link", prefetch=0
        )
        manager.register(Traced)
        with trace.use_span(trace.NonRecordingSpan(context)):
            task_id = manager.submit(Traced())
        sent = f"00-{1:032x}-{2:016x}-01"
        assert manager.wait_for(task_id, 60).result == [sent, sent]
        assert manager.wait_for(manager.submit(Traced()), 60).result == [None, None]


def test_unknown_run_spans_are_refused(own_server: Any) -> None:
    """The error names the option and its values."""
    with pytest.raises(ValueError, match="run_spans must be one of link, child, not 'none'"):
        JobManager(None, run_spans="none")  # type: ignore[arg-type]


def test_the_sdk_does_not_load_opentelemetry() -> None:
    """A worker without it does not pay for its import."""
    program = "import sys, zndraw_joblib.worker.manager, zndraw_joblib.worker.serving; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "zndraw_joblib.jobs.traces" in done.stdout
    assert "opentelemetry" not in done.stdout


_HALF_LOADED = """
import sys, threading
began, may_end, found = threading.Event(), threading.Event(), []
sys.path.insert(0, sys.argv[1])
threading.Thread(target=__import__, args=("opentelemetry.trace",)).start()
began.wait()
from zndraw_joblib.jobs.traces import current_traceparent
reader = threading.Thread(target=lambda: found.append(current_traceparent()))
reader.start()
reader.join(0.3)  # it has to wait for the other thread
may_end.set()
reader.join()
print(found)
"""
_SLOW_MODULE = """
import sys
sys.modules["__main__"].began.set()
sys.modules["__main__"].may_end.wait()
class Context:
    is_valid = False
class Span:
    get_span_context = Context
get_current_span = Span
"""


def test_a_module_that_another_thread_loads_is_awaited(tmp_path: Path) -> None:
    """A job may import OpenTelemetry while other tasks start."""
    package = tmp_path / "opentelemetry"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "trace.py").write_text(_SLOW_MODULE)
    run = subprocess.run(
        [sys.executable, "-c", _HALF_LOADED, tmp_path], capture_output=True, text=True, check=True, timeout=50
    )
    assert (run.stdout, run.stderr) == ("[None]\n", "")
