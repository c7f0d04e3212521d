"""Read the header `traceparent` of a submit, and make its span if the request has one of OpenTelemetry."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated

from fastapi import Depends, Header, Request

from zndraw_joblib.contract import traces
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.server.http.host_routes import tracer_provider
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.routing import RESOLVERS

_HEADER = traces.TRACEPARENT.encode()


async def _traceparent(
    traceparent: Annotated[
        Omissible[str],
        Header(
            description="The trace context of the submit (W3C Trace Context), kept with the task for its "
            "workers. An invalid one is ignored."
        ),
    ] = None,
) -> None:
    """Declare the header for the OpenAPI document; `RESOLVERS` has the function that reads it."""


def _given(request: Request) -> str | None:
    given = [value for name, value in request.scope["headers"] if name == _HEADER]
    return traces.parse_traceparent(given[0].decode("latin-1")) if len(given) == 1 else None


RESOLVERS[_traceparent] = _given
Traceparent = Annotated[str | None, Depends(_traceparent)]


def submit_span(
    request: Request, given: str | None, job: JobName | None, count: int | None = None
) -> AbstractContextManager[str | None]:
    """Return a block that submits tasks, which gets the trace context to keep with them.

    If the request has a span, because OpenTelemetry follows it, that is the context of a new span in it;
    otherwise it is the header's. `job` is None for a batch of several jobs, `count` the size of a batch.
    """
    return _span(request, job, count) if traces.has_current_span() else nullcontext(given)


@contextmanager
def _span(request: Request, job: JobName | None, count: int | None) -> Iterator[str | None]:
    about = {"messaging.operation.type": "send", "messaging.operation.name": "submit"}
    about |= {} if job is None else {"messaging.destination.name": str(job)}
    sizes = {} if count is None else {"messaging.batch.message_count": count}
    name = "submit" if job is None else f"submit {job}"
    provider = tracer_provider(request.app)
    span = traces.start_span(name, "PRODUCER", about | sizes, provider=provider)
    if span is None:
        yield traces.current_traceparent()
        return
    try:
        with span.active():
            yield span.traceparent
    except BaseException as error:
        span.end(str(error) or type(error).__name__)
        raise
    span.end()
