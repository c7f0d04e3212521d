"""What is logged, on standard error."""

import logging

from zndraw_joblib.cli.options import LogLevel

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_up(level: LogLevel = LogLevel.WARNING, *, access_log: bool = False) -> None:
    """Log our own messages from `level` on, those of the libraries from warnings on."""
    logging.basicConfig(format=_FORMAT, level=logging.WARNING)
    logging.captureWarnings(capture=True)
    logging.getLogger("zndraw_joblib").setLevel(level.upper())
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
