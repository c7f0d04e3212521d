"""Extensions that return the trace context in which they run."""

import asyncio
from typing import Any, ClassVar

from opentelemetry import trace
from spans import traceparent_of

from zndraw_joblib.jobs.extensions import Category, Extension


class Traced(Extension):
    """Returns the context of the current span, or fails."""

    category: ClassVar[Category] = Category.ANALYSIS
    fail: bool = False

    def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the context."""
        if self.fail:
            raise KeyError("missing")
        return traceparent_of(trace.get_current_span())


class TracedLater(Extension):
    """Returns the context of the current span of a coroutine."""

    category: ClassVar[Category] = Category.ANALYSIS

    async def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the context after a turn of the event loop."""
        await asyncio.sleep(0)
        return traceparent_of(trace.get_current_span())
