"""Warn of jobs whose results can never be sent, before they have done their work."""

import logging
from typing import Any, get_type_hints

from zndraw_joblib.contract.results import can_encode

log = logging.getLogger(__name__)


def warn_of_return_type(job: type[Any]) -> None:
    """Log a warning if a job is declared to return objects of a class that cannot be encoded."""
    run = getattr(job, "__wrapped__", job.run)
    try:
        returned = get_type_hints(run).get("return", Any)
    # An annotation may be any code, and names that exist only for type checkers.
    except Exception:
        return
    if not can_encode(returned):
        log.warning(
            "%s() returns objects of %s.%s, which cannot be encoded: its tasks will fail. Return JSON "
            "values or a dataclass, or call register_codec() before the registration",
            *(run.__qualname__, returned.__module__, returned.__qualname__),
        )
