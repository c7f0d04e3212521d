"""Options of sbatch as fields of a batch job in Slurm's REST API."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

# "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours", "days-hours:minutes",
# "days-hours:minutes:seconds"
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_MEBIBYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


def job_fields(options: Sequence[str]) -> dict[str, Any]:
    """Return the fields for options of sbatch. Raises ValueError for those without a field here."""
    parser = _Parser(add_help=False, allow_abbrev=False, prefix_chars="-")
    for options_of_field, (field, parse) in _FIELDS.items():
        parser.add_argument(*options_of_field, dest=field, type=parse)
    parser.add_argument("--exclusive", dest="shared", action="store_const", const=["none"])
    values, others = parser.parse_known_args(options)
    if others:
        names = ", ".join([*(names[0] for names in _FIELDS), "--exclusive"])
        raise ValueError(f"{others[0]} cannot be sent to slurmrestd. Use only {names}, or submit by sbatch")
    return {field: value for field, value in vars(values).items() if value is not None}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def _time_limit(text: str) -> dict[str, Any]:
    match = _TIME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 90, 2:00:00 or 1-12:00:00")
    parts = [int(part) for part in match.groups() if part is not None]
    if match[1] is not None:
        days, hours, minutes, seconds = [*parts, 0, 0][:4]
    elif len(parts) == 3:
        days, hours, minutes, seconds = [0, *parts]
    else:
        days, hours, minutes, seconds = [0, 0, *parts, 0][:4]
    # Slurm counts a part of a minute as one.
    return _number(((days * 24 + hours) * 60) + minutes + (seconds + 59) // 60)


def _memory(text: str) -> dict[str, Any]:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no memory like 500M or 16G")
    return _number(-int(-int(match[1]) * _MEBIBYTES[match[2].upper()] // 1))


def _number(value: int) -> dict[str, Any]:
    return {"set": True, "number": value}


def _generic_resources(text: str) -> str:
    return ",".join(f"gres/{one.removeprefix('gres/')}" for one in text.split(","))


def _gpus(text: str) -> str:
    return ",".join(f"gres/gpu:{one}" for one in text.split(","))


_FIELDS: dict[tuple[str, ...], tuple[str, Callable[[str], Any]]] = {
    ("--partition", "-p"): ("partition", str),
    ("--account", "-A"): ("account", str),
    ("--qos", "-q"): ("qos", str),
    ("--reservation",): ("reservation", str),
    ("--time", "-t"): ("time_limit", _time_limit),
    ("--nodes", "-N"): ("nodes", str),
    ("--ntasks", "-n"): ("tasks", int),
    ("--cpus-per-task", "-c"): ("cpus_per_task", int),
    ("--mem",): ("memory_per_node", _memory),
    ("--mem-per-cpu",): ("memory_per_cpu", _memory),
    ("--gres",): ("tres_per_node", _generic_resources),
    ("--gpus", "-G"): ("tres_per_job", _gpus),
    ("--constraint", "-C"): ("constraints", str),
    ("--nodelist", "-w"): ("required_nodes", str),
    ("--exclude", "-x"): ("excluded_nodes", str),
    ("--licenses", "-L"): ("licenses", str),
    ("--nice",): ("nice", int),
    ("--comment",): ("comment", str),
    ("--chdir", "-D"): ("current_working_directory", str),
}
