"""What is logged, on standard error."""

import logging
from dataclasses import dataclass

from zndraw_joblib.cli.options import LogLevel

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_FORMAT_OF_MANY = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class Speech:
    """What a server logs."""

    level: LogLevel
    access_log: bool


def set_up(
    level: LogLevel = LogLevel.WARNING, *, access_log: bool = False, is_one_of_many: bool = False
) -> None:
    """Log our own messages from `level` on, those of the libraries from warnings on.

    A process that is one of many says its number in each line.
    """
    logging.basicConfig(format=_FORMAT_OF_MANY if is_one_of_many else _FORMAT, level=logging.WARNING)
    logging.captureWarnings(capture=True)
    logging.getLogger("zndraw_joblib").setLevel(level.upper())
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
