"""Tokens of workers: short-lived ones, for some jobs in some rooms, which an operator issues."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from zndraw_joblib.wire.bodies import Printable, RequestBody, ResponseBody
from zndraw_joblib.wire.names import MAX_NAME_LENGTH
from zndraw_joblib.wire.requirements import Labels

MAX_ROOMS = MAX_PATTERNS = 20
MAX_CLAIMS = 1_000_000
MAX_TOKEN_SECONDS = 30 * 86_400
_MAX_PATTERN = 256
# The other wildcards of file names.
_WILDCARDS = frozenset("?[]")


def _pattern(text: str) -> str:
    if _WILDCARDS.intersection(text):
        raise ValueError(f"{text[:MAX_NAME_LENGTH]!r}: the only wildcard is '*', which stands for anything")
    return text


JobPattern = Annotated[str, Printable, Field(min_length=1, max_length=_MAX_PATTERN), AfterValidator(_pattern)]


class WorkerTokenRequest(RequestBody):
    """Issue a token whose workers register and serve only these jobs, in these rooms.

    `jobs` are full names or patterns like ``lab:*``. The workers claim at most `max_tasks` tasks together.
    The token ends after `expires_in_seconds`. Its workers have these `labels`, whatever they say about
    themselves.
    """

    jobs: list[JobPattern] = Field(min_length=1, max_length=MAX_PATTERNS)
    rooms: list[str] = Field(min_length=1, max_length=MAX_ROOMS)
    max_tasks: Annotated[int, Field(ge=1, le=MAX_CLAIMS)] | None = None
    expires_in_seconds: Annotated[float, Field(gt=0, le=MAX_TOKEN_SECONDS, allow_inf_nan=False)]
    labels: Labels | None = None


class WorkerTokenResponse(ResponseBody):
    """A token of workers, whose text is only here. `name` is the user that its workers belong to."""

    name: str
    token: str
    jobs: list[str]
    rooms: list[str]
    max_tasks: int | None
    expires_at: datetime
    labels: dict[str, Any]
