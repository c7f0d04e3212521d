"""Text of the server and of users, without what would control a terminal."""

import re

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Control characters, and those that change the direction or the end of a line.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def clean_text(text: str) -> str:
    """Return text with its line breaks and tabs, each control character as a space."""
    return _CONTROL.sub(" ", _ESCAPE.sub("", text.replace("\r\n", "\n")))


def clean_line(text: str) -> str:
    """Return text as one line with its tabs, without characters that are not printable."""
    return "".join(
        letter if letter.isprintable() or letter == "\t" else " " for letter in _ESCAPE.sub("", text)
    )


def one_line(text: str) -> str:
    """Return text as one line, with one space for each run of white space."""
    return " ".join(clean_line(text).split())


def escape_json(text: str) -> str:
    """Return JSON that means the same, in which every control character of a text is an escape."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
