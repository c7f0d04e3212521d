"""The commands in the documentation's console and shell blocks."""

import re
import shlex
from collections.abc import Iterator

_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_FUNCTION = re.compile(r"^(\w+)\(\) \{(.*)\}$", re.MULTILINE)
# `$(…)`, with up to two levels of parentheses inside.
_INSIDE = re.compile(r"\$\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_BETWEEN = {"|", "||", "&&", ";", "&"}
_REDIRECTS = {">", ">>", "<", "2>"}


def typed(language: str, text: str) -> str:
    """Return what the reader types: of a console block the lines after `$`, with their continuations."""
    if language != "console":
        return text
    lines: list[str] = []
    goes_on = False
    for line in text.splitlines():
        if goes_on or line.startswith("$ "):
            lines.append(line if goes_on else line.removeprefix("$ "))
            goes_on = line.endswith("\\")
    return "\n".join(lines)


def functions(text: str) -> set[str]:
    """Return the names of the shell functions that a block defines."""
    return {name for name, _ in _FUNCTION.findall(text)}


def commands(text: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield each command with the variables that are set for it, also those in pipes and in `$(…)`."""
    text = _FUNCTION.sub(r"\2", text.replace("\\\n", " "))
    for line in text.splitlines():
        while found := _INSIDE.search(line):
            yield from commands(found[1])
            line = line[: found.start()] + "X" + line[found.end() :]  # noqa: PLW2901 - it becomes shorter
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        yield from _split(list(words))


def _split(words: list[str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _BETWEEN:
            command.append(word)
        elif command:
            yield _variables(command)
            command = []


def _variables(command: list[str]) -> tuple[dict[str, str], list[str]]:
    given: dict[str, str] = {}
    words = [word for word in command if word not in {"exec", "export"}]
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    redirect = next((at for at, word in enumerate(words) if word in _REDIRECTS), len(words))
    return given, words[:redirect]
