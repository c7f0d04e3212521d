"""The trace context of a task (W3C Trace Context), and spans for programs that have set up OpenTelemetry.

Nothing here imports OpenTelemetry: without a program that does, there are no spans.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Literal, get_args

from zndraw_joblib.jobs.task_context import running_task
from zndraw_joblib.wire.progress import Failure

TRACEPARENT = "traceparent"
# How the span of a run relates to the submitter's: in a trace of its own with a link, or as its child.
RunSpans = Literal["link", "child"]
RUN_SPANS: tuple[RunSpans, ...] = get_args(RunSpans)

_API, _CONTEXT_API = "opentelemetry.trace", "opentelemetry.context"
_SCOPE = "zndraw_joblib"
_MAX_LINKS = 100
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FIRST_VERSION, _NO_VERSION = "00", "ff"


def parse_traceparent(text: str) -> str | None:
    """Return a valid header `traceparent` in the form of version 00; None if it is invalid.

    Of a later version, only what version 00 knows is kept: the ids and the flag "sampled".
    """
    match = _FORM.fullmatch(text.strip(" \t"))
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    if version == _NO_VERSION or not (trace_id.strip("0") and parent_id.strip("0")):
        return None
    if version != _FIRST_VERSION:
        flags = f"{int(flags, 16) & 1:02x}"
    elif rest is not None:
        return None
    return f"{_FIRST_VERSION}-{trace_id}-{parent_id}-{flags}"


def current_traceparent() -> str | None:
    """Return the context of the current span; without one, that of the task that runs here; or None."""
    if (context := _current_context()) is not None:
        return _format(context)
    return getattr(running_task.get(), TRACEPARENT, None)


def current_ids() -> dict[str, str]:
    """Return the ids of the current span, for records of a log."""
    if (context := _current_context()) is None:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def has_current_span() -> bool:
    """Return whether this code runs in a span."""
    return _API in sys.modules and _current_context() is not None


class TaskSpan:
    """A span about tasks. `traceparent` is its context."""

    def __init__(self, span: Any, context: Any) -> None:
        self._span = span
        self._context = context

    @property
    def traceparent(self) -> str | None:
        """The context of the span, None if it is invalid."""
        context = self._span.get_span_context()
        return _format(context) if context.is_valid else None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the span the current one in a block. The end of the block does not end the span."""
        api = sys.modules[_CONTEXT_API]
        token = api.attach(self._context)
        try:
            yield
        finally:
            api.detach(token)

    def end_run(self, error: str | None, failure: Failure | None, *, is_cancelled: bool) -> None:
        """End the span of a run with its outcome; `failure` describes the exception of the job."""
        outcome = "cancelled" if is_cancelled else "completed" if error is None else "failed"
        self._span.set_attribute("zndraw_joblib.outcome", outcome)
        if error is not None and failure is not None:
            exception = {"exception.type": failure.type, "exception.message": error}
            trace = failure.full_traceback or failure.traceback
            self._span.add_event("exception", exception | {"exception.stacktrace": trace})
        self.end(error)

    def end(self, error: str | None = None) -> None:
        """End the span, as an error if there is one."""
        if error is not None:
            self._span.set_status(sys.modules[_API].StatusCode.ERROR, error.partition("\n")[0])
        self._span.end()


def start_span(  # noqa: PLR0913 - each is a property of the span
    name: str,
    kind: Literal["PRODUCER", "CONSUMER"],
    attributes: Mapping[str, Any],
    *,
    parent: Literal["current", "none", "given"] = "current",
    traceparents: Sequence[str | None] = (),
    started_ns: int | None = None,
    provider: Any = None,
) -> TaskSpan | None:
    """Start a span; return None if no tracer provider is configured.

    Its parent is the current span, none, or the first of the `given` contexts; it has links to the given
    contexts that are not its parent. `provider` replaces OpenTelemetry's global one.
    """
    provider = provider or _global_provider()
    if provider is None:
        return None
    api, contexts = _loaded(_API), _loaded(_CONTEXT_API)
    remote = [_remote(api, text) for text in dict.fromkeys(traceparents) if text is not None]
    base = contexts.get_current() if parent == "current" else contexts.Context()
    if parent == "given" and remote:
        base = api.set_span_in_context(api.NonRecordingSpan(remote.pop(0)), base)
    span = provider.get_tracer(_SCOPE).start_span(
        name,
        context=base,
        kind=api.SpanKind[kind],
        attributes={"messaging.system": _SCOPE, **attributes},
        links=[api.Link(context) for context in remote[:_MAX_LINKS]],
        start_time=started_ns,
    )
    return TaskSpan(span, api.set_span_in_context(span, base))


def start_run(
    job: str, task_id: str, worker_id: str, attempt: int, *, traceparent: str | None, how: RunSpans = "link"
) -> TaskSpan | None:
    """Start the span of a run, with a link to the span of its submit or as its child."""
    about = {
        "messaging.operation.type": "process",
        "messaging.operation.name": "run",
        "messaging.destination.name": job,
        "messaging.message.id": task_id,
        "messaging.client.id": worker_id,
        "zndraw_joblib.attempt": attempt,
    }
    parent: Literal["none", "given"] = "given" if how == "child" else "none"
    return start_span(f"run {job}", "CONSUMER", about, parent=parent, traceparents=[traceparent])


def active(span: TaskSpan | None) -> AbstractContextManager[None]:
    """Return a block in which a span is the current one, if there is a span."""
    return nullcontext() if span is None else span.active()


@contextmanager
def continued(traceparent: str | None) -> Iterator[None]:
    """Make the span of another process the current one in a block, if OpenTelemetry is loaded here."""
    api, contexts = _loaded(_API), _loaded(_CONTEXT_API)
    if traceparent is None or api is None or contexts is None:
        yield
        return
    span = api.NonRecordingSpan(_remote(api, traceparent))
    token = contexts.attach(api.set_span_in_context(span))
    try:
        yield
    finally:
        contexts.detach(token)


def _loaded(name: str) -> Any:
    """Return a module if the program has loaded it, None otherwise. Wait for another thread that loads it."""
    return import_module(name) if name in sys.modules else None


def _global_provider() -> Any:
    """Return the tracer provider of the program, None if there is none."""
    api = _loaded(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider) else provider


def _current_context() -> Any:
    api = _loaded(_API)
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    return context if context.is_valid else None


def _format(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _remote(api: Any, traceparent: str) -> Any:
    _, trace_id, span_id, flags = traceparent.split("-")
    return api.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=api.TraceFlags(int(flags, 16))
    )
