"""Logging to standard error."""

import logging
from dataclasses import dataclass

from zndraw_joblib.cli.options import LogLevel

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_FORMAT_WITH_PID = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log level of this package, and whether uvicorn logs requests."""

    level: LogLevel = LogLevel.WARNING
    access_log: bool = False

    def apply(self, *, with_pid: bool = False) -> None:
        """Log this package from `level` on, and all libraries from WARNING on."""
        logging.basicConfig(format=_FORMAT_WITH_PID if with_pid else _FORMAT, level=logging.WARNING)
        logging.captureWarnings(capture=True)
        logging.getLogger("zndraw_joblib").setLevel(self.level.upper())
        if self.access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
