"""Spans of OpenTelemetry in memory, for one test: no tracer provider is left behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from waiting import wait_until


class Spans:
    """The ended spans of a tracer provider."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        """The spans, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of a name."""
        return [span for span in self.all if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Return the spans of a name once there are `count`."""
        wait_until(lambda: len(self.named(name)) >= count)
        return self.named(name)


def traceparent_of(span: Any) -> str:
    """Return the context of a span as a header."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def links_of(span: ReadableSpan) -> list[int]:
    """Return the ids of the spans to which a span has links."""
    return [link.context.span_id for link in span.links]


@contextmanager
def global_spans() -> Iterator[Spans]:
    """Set OpenTelemetry's global tracer provider in a block. Other tests run in the same process."""
    spans = Spans()
    former = trace._TRACER_PROVIDER
    assert former is None
    trace._TRACER_PROVIDER = spans.provider
    try:
        yield spans
    finally:
        trace._TRACER_PROVIDER = former
        spans.provider.shutdown()
