"""Load the server's settings for a command, and explain which one is wrong."""

import os
import tomllib
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zndraw_joblib.cli.display import UsageError
from zndraw_joblib.server.process.settings import ServerSettings, report
from zndraw_joblib.wire.operators import Settings

_PREFIX = "ZNDRAW_JOBLIB_"
_SECRET = frozenset({"admin_token", "database_url"})


def load(database_url: str | None, **options: Any) -> ServerSettings:
    """Return the settings; options of the command line win. Raises `UsageError`."""
    options["database_url"] = database_url
    values = {name: value for name, value in options.items() if value is not None}
    try:
        return ServerSettings(**values)
    except ValidationError as error:
        raise UsageError("; ".join(map(_explain, error.errors()))) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"pyproject.toml in the working directory is not valid TOML: {error}. Repair the file"
        ) from error


def report_local(database_url: str | None) -> Settings:
    """Return the settings that a server here would have, with their sources. Raises `UsageError`."""
    return report(load(database_url))


def _explain(error: ErrorDetails) -> str:
    message = error["msg"].removeprefix("Value error, ")
    field = str(error["loc"][0]) if error["loc"] else message.split(" ", 1)[0]
    variable = _PREFIX + field.upper()
    # pydantic-settings ignores the case of environment variables.
    is_set = variable in map(str.upper, os.environ)
    source = variable if is_set else f"{field} in [tool.zndraw.joblib] of pyproject.toml"
    value = "" if field in _SECRET or not error["loc"] else f" (it is {str(error['input'])[:100]!r})"
    return f"{source}: {message}{value}"
