"""Count the requests of a route by method and status, and the time until their responses."""

from collections import defaultdict

from starlette.types import Scope

from zndraw_joblib.server.histogram import Histogram

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Set in the scope of a request that waited for something, as a client asked with `Prefer: wait`.
WAITED = "zndraw_joblib.waited"
# The status of a request whose error a handler of the host answers.
BY_HOST = "host"


class RequestCounts:
    """The requests that one process answered: `answered` by method and status.

    `seconds` has the times until the responses began, by method, without requests that waited.
    """

    __slots__ = ("answered", "seconds")

    def __init__(self) -> None:
        self.answered: defaultdict[tuple[str, int | str], int] = defaultdict(int)
        self.seconds: dict[str, Histogram] = {}

    def add(self, scope: Scope, status: int | str, seconds: float) -> None:
        """Count a request."""
        method = scope["method"]
        self.answered[method, status] += 1
        if WAITED not in scope:
            histogram = self.seconds.get(method)
            if histogram is None:
                histogram = self.seconds[method] = Histogram(REQUEST_SECONDS)
            histogram.add(seconds)
