"""Log an expected failure once, and then how often it was repeated."""

import asyncio
import logging
import time

_SECONDS = 10.0


class RepeatedFailure:
    """Logs a failure that may come with each request: the first, then one line each 10 s with their number.

    The text of a later line is that of the last failure. Use it in one event loop at a time.
    """

    def __init__(self, logger: logging.Logger, seconds: float = _SECONDS) -> None:
        self._logger = logger
        self._seconds = seconds
        self._text = ""
        self._count = 0
        self._until = 0.0

    def log(self, text: str) -> None:
        """Log a failure now, or count it for the next line. Call it in an event loop."""
        # The count of an interval ends with the event loop that began it.
        if time.monotonic() > self._until + self._seconds:
            self._logger.error("%s", text)
            self._open()
        else:
            self._text = text
            self._count += 1

    def _open(self) -> None:
        self._count = 0
        self._until = time.monotonic() + self._seconds
        asyncio.get_running_loop().call_later(self._seconds, self._close)

    def _close(self) -> None:
        if self._count:
            self._logger.error("%s (%d times in %g s)", self._text, self._count, self._seconds)
            self._open()
        else:
            self._until = 0.0


def log_failed_work(logger: logging.Logger, error: Exception, text: str, **fields: str) -> None:
    """Log that repeated work failed once: one line, with a traceback if `error` is unexpected.

    Expected are an unavailable database or service, and a time limit. `fields` are fields of the record.
    """
    if isinstance(error, OSError | TimeoutError):
        reason = str(error).partition("\n")[0] or type(error).__name__
        logger.error("%s: %s", text, reason, extra=fields)
    else:
        logger.error("%s", text, exc_info=error, extra=fields)
