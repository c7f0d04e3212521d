"""The units of deploy/systemd are valid, and use settings and commands that the code knows."""

import configparser
import re
import shlex
from pathlib import Path

import pytest

from deploy.known import OTHER_VARIABLES, SETTINGS, parse
from zndraw_joblib.cli.server.processes import STOP_SECONDS

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir() if path.suffix in {".service", ".timer"})
PROGRAM = "/opt/zndraw-joblib/bin/zndraw-joblib"
PROGRAMS = [name for name in UNITS if PROGRAM in (FOLDER / name).read_text()]
# The directives that the units may use, from systemd.unit(5), .service(5), .exec(5), .kill(5) and .timer(5).
DIRECTIVES = {
    "Unit": {"After", "Description", "Documentation", "Wants"},
    "Install": {"WantedBy"},
    "Timer": {"OnCalendar", "Persistent", "RandomizedDelaySec"},
    "Service": {
        *("EnvironmentFile", "ExecStart", "ExecStartPost", "ExecStartPre", "Group", "KillMode"),
        *("LimitNOFILE", "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectControlGroups"),
        *("ProtectHome", "ProtectKernelModules", "ProtectKernelTunables", "ProtectSystem", "Restart"),
        *("RestartSec", "RestrictAddressFamilies", "StateDirectory", "StateDirectoryMode"),
        *("TimeoutStopSec", "Type", "User", "WorkingDirectory"),
    },
}


def read(name: str) -> configparser.ConfigParser:
    """Return the sections of a unit."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((FOLDER / name).read_text())
    return unit


def variables(name: str) -> dict[str, str]:
    """Return the variables of a file, also those that are comments."""
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (FOLDER / name).read_text(), re.MULTILINE))


def seconds(text: str) -> int:
    """Return a duration of systemd in seconds."""
    [(number, unit)] = re.findall(r"^(\d+)(h|min|)$", text)
    return int(number) * {"h": 3600, "min": 60, "": 1}[unit]


def test_every_command_exists(subtests: pytest.Subtests) -> None:
    """The program has each command and its options."""
    for name in PROGRAMS:
        service = read(name)["Service"]
        for key in ("ExecStartPre", "ExecStart"):
            if key in service:
                with subtests.test(name, key=key):
                    [program, *arguments] = shlex.split(service[key])
                    assert program == PROGRAM
                    parse(arguments)


def test_a_service_restarts_and_has_time_to_stop(subtests: pytest.Subtests) -> None:
    """systemd sends SIGTERM to the first process only; the others are stopped by it."""
    for name in PROGRAMS:
        service = read(name)["Service"]
        with subtests.test(name):
            assert service["Restart"] == "always"
            assert service["KillMode"] == "mixed"
            assert seconds(service["TimeoutStopSec"]) > STOP_SECONDS
            assert service["User"] == "joblib"
            assert service["NoNewPrivileges"] == "true"


def test_the_server_may_write_its_database() -> None:
    """All other folders are read-only, also in the service that copies the file."""
    for name in ("zndraw-joblib.service", "zndraw-joblib-backup.service"):
        service = read(name)["Service"]
        assert service["ProtectSystem"] == "strict"
        assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"


def test_the_variables_are_known_and_have_no_secrets() -> None:
    """A server would ignore a misspelt setting; the files name no working secret."""
    for name in ("server.env", "worker.env"):
        given = variables(name)
        assert given
        assert set(given) <= SETTINGS | OTHER_VARIABLES
        assert {value for variable, value in given.items() if variable.endswith("TOKEN")} == {""}
    used = {read(name)["Service"]["EnvironmentFile"].rpartition("/")[2] for name in PROGRAMS}
    assert used == {"server.env", "worker.env"}


def test_the_directives_exist() -> None:
    """systemd ignores a directive that it does not know, and one in the wrong section."""
    unknown = {
        (name, section, directive)
        for name in UNITS
        for section, directives in read(name).items()
        for directive in set(directives) - DIRECTIVES.get(section, set())
    }
    assert unknown == set()
