"""What the code knows and the deployment files name: settings, commands, paths."""

from typing import Any

from zndraw_joblib.cli import all_commands
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

SETTINGS = {f"ZNDRAW_JOBLIB_{name.upper()}" for name in ServerSettings.model_fields}
# Variables that the client commands and uvicorn read, in addition to the settings.
OTHER_VARIABLES = {"ZNDRAW_JOBLIB_URL", "ZNDRAW_JOBLIB_TOKEN", "FORWARDED_ALLOW_IPS"}


def parse(arguments: list[str]) -> dict[str, Any]:
    """Return the parameters of a command line without running it."""
    command: Any = all_commands()
    while arguments and arguments[0] in getattr(command, "commands", {}):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    parameters: dict[str, Any] = command.make_context("", list(arguments)).params
    return parameters


def paths() -> set[str]:
    """Return the paths of the standalone server."""
    return set(create_app(ServerSettings(database_url="sqlite://")).openapi()["paths"])
