"""Misspelt environment variables: those with the prefix that no setting has."""

import logging
from collections.abc import Collection

from zndraw_joblib.contract.variables import describe, unknown_variables

log = logging.getLogger(__name__)


def warn_of_unknown(known: Collection[str] | None = None) -> None:
    """Log a warning for each variable that is no setting.

    Without `known` the settings of a server are not known: then only those that resemble a client's variable.
    """
    for name, nearest in unknown_variables(known or ()).items():
        if known is not None or nearest is not None:
            log.warning("%s", describe(name, nearest))
