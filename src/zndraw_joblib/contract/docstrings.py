"""What a docstring says: its first paragraph, and its parameters in the style of Google or NumPy."""

import inspect
import re

_GOOGLE = re.compile(r"^(?:Args|Arguments|Parameters):$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)(?: *\([^)]*\))?: *(.*)$")
_NUMPY = re.compile(r"^Parameters\n-{3,}$", re.MULTILINE)
_NUMPY_ENTRY = re.compile(r"^(\w+(?:, *\w+)*)(?: *:.*)?$")
_UNDERLINE = re.compile(r"^-{3,}$")


def summary_of(docstring: str | None) -> str | None:
    """Return the first paragraph on one line, None if there is none."""
    first = inspect.cleandoc(docstring or "").partition("\n\n")[0]
    return " ".join(first.split()) or None


def parameters_of(docstring: str | None) -> dict[str, str]:
    """Return the texts of the parameters that a docstring describes, each on one line."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        if _GOOGLE.match(line):
            found |= _google_entries(lines[number + 1 :])
        elif _NUMPY.match("\n".join(lines[number : number + 2])):
            found |= _numpy_entries(lines[number + 2 :])
    texts = {name: " ".join(" ".join(text).split()) for name, text in found.items()}
    return {name: text for name, text in texts.items() if text}


def _google_entries(lines: list[str]) -> dict[str, list[str]]:
    """Return the entries of a section: its lines are indented, and those that go on with an entry more."""
    found: dict[str, list[str]] = {}
    indent = None
    text: list[str] = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line and not depth:
            break
        indent = depth if indent is None and line else indent
        entry = _GOOGLE_ENTRY.match(line.strip()) if depth == indent else None
        if entry:
            text = found[entry[1]] = [entry[2]]
        else:
            text.append(line)
    return found


def _numpy_entries(lines: list[str]) -> dict[str, list[str]]:
    """Return the entries of a section: its names are not indented, and their texts are."""
    found: dict[str, list[str]] = {}
    text: list[str] = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if _UNDERLINE.match(after):
            break
        entry = _NUMPY_ENTRY.match(line)
        if entry:
            text = []
            found |= dict.fromkeys(re.split(", *", entry[1]), text)
        else:
            text.append(line)
    return found
