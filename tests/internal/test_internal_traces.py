"""The run of an internal task has a span that is linked to its submit."""

from typing import Any

from opentelemetry.sdk.trace import SpanProcessor
from spans import global_spans, links_of, traceparent_of

from internal.processes import TOKEN, running, submit, wait_for_end
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings


class Broken(SpanProcessor):
    """Raises when the span of a run starts."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Raise for a run."""
        if span.name.startswith("run "):
            raise RuntimeError("no run")


async def test_an_internal_run_links_to_its_submit(database_url: str) -> None:
    """It has a trace of its own, although the server begins it in the request; its job runs in the span.

    Without a span it runs too.
    """
    settings = ServerSettings(
        database_url=database_url, admin_token=TOKEN, internal_extensions="sdk.traced_jobs:Traced"
    )
    name = "@internal:analysis:Traced"
    with global_spans() as spans:
        async with running(create_app(settings)) as client:
            done = await wait_for_end(client, await submit(client, name))
            failed = await wait_for_end(client, await submit(client, name, fail=True))
            spans.provider.add_span_processor(Broken())
            without = await wait_for_end(client, await submit(client, name))
        runs = spans.named(f"run {name}")
        submits = spans.named(f"submit {name}")
    assert done["result"] == traceparent_of(runs[0])
    assert (without["status"], len(runs)) == ("completed", 2)
    for run, sent, task in zip(runs, submits[:2], (done, failed), strict=True):
        context = sent.get_span_context()
        assert (run.parent, links_of(run)) == (None, [context.span_id])
        assert run.get_span_context().trace_id != context.trace_id
        attributes = run.attributes or {}
        assert (attributes["messaging.message.id"], attributes["zndraw_joblib.outcome"]) == (
            task["id"],
            task["status"],
        )
    assert [event.name for event in runs[1].events] == ["exception"]
