"""The server's settings, and what is said when one of them is wrong."""

import os
import tomllib
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.server.settings import ServerSettings

_PREFIX = "ZNDRAW_JOBLIB_"
_SECRET = frozenset({"admin_token", "database_url"})


def read(database_url: str | None, workers: int | None = None, **typed: Any) -> ServerSettings:
    """Return the settings; what was typed wins. Raises `Misuse`."""
    typed |= {"database_url": database_url, "workers": workers}
    given = {name: value for name, value in typed.items() if value is not None}
    try:
        return ServerSettings(**given)
    except ValidationError as error:
        raise Misuse("; ".join(map(_fault, error.errors()))) from error
    except tomllib.TOMLDecodeError as error:
        raise Misuse(f"pyproject.toml in the working directory is not TOML: {error}") from error


def _fault(fault: ErrorDetails) -> str:
    message = fault["msg"].removeprefix("Value error, ")
    field = str(fault["loc"][0]) if fault["loc"] else message.split(" ", 1)[0]
    variable = _PREFIX + field.upper()
    # The environment's names are case-insensitive.
    is_set = variable in map(str.upper, os.environ)
    place = variable if is_set else f"{field} in [tool.zndraw.joblib] of pyproject.toml"
    value = "" if field in _SECRET or not fault["loc"] else f" (it is {str(fault['input'])[:100]!r})"
    return f"{place}: {message}{value}"
