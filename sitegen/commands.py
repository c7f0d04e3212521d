"""Generate the page of all commands from the command line's own declarations."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args, get_origin

from zndraw_joblib.cli import all_commands

_INTRODUCTION = """\
# All commands and options

Generated from the command line. [Command line](cli.md) explains how the commands work together.
"""


def page() -> str:
    """Return a section for each command: its text, its usage, a table of its arguments and options."""
    return "\n".join([_INTRODUCTION, *_sections(all_commands(), ())])


def each_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of each command, without the program, and its click object."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    if path and command.invoke_without_command:
        yield path, command
    for name, one in command.commands.items():
        yield from each_command(one, (*path, name))


def _sections(root: Any, path: tuple[str, ...]) -> Iterator[str]:
    for words, command in each_command(root, path):
        shown = [one for one in command.params if not getattr(one, "hidden", False)]
        yield f"## {' '.join(words)}\n\n{_text(command.help)}\n\n```console\n$ {_usage(words, shown)}\n```\n"
        rows = [_row(one) for one in shown]
        if rows:
            yield "\n".join(["| argument or option | default | |", "|---|---|---|", *rows, ""])


def _usage(words: tuple[str, ...], params: list[Any]) -> str:
    names = [_argument(one) for one in params if one.param_type_name == "argument"]
    return " ".join(["zndraw-joblib", *words, *names, "[OPTIONS]"])


def _argument(param: Any) -> str:
    name = (param.metavar or param.name).upper()
    return f"{name} …" if param.nargs == -1 else f"{name}"


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        name = f"`{_argument(param)}`"
    else:
        flags = ", ".join(f"`{flag}`" for flag in [*param.opts, *param.secondary_opts])
        name = flags if param.is_flag else f"{flags} {_kind(param)}"
    return f"| {name} | {_default(param)} | {_text(param.help).replace('|', chr(92) + '|')} |"


def _kind(param: Any) -> str:
    annotation = param.type_descriptor.annotation
    # That of the items of a list.
    annotation = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " \\| ".join(str(one.value) for one in annotation)
    return str(param.metavar or param.bare_type().upper())


def _default(param: Any) -> str:
    value = param.default
    if callable(value) or value in (None, False, (), []) or "UNSET" in repr(value).upper():
        return "required" if param.required else ""
    text = getattr(value, "value", value)
    return f"`{str(text).lower() if isinstance(text, bool) else text}`"


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("<", "&lt;")
