"""Ids of tasks and workers, which a command takes as a whole or as a prefix that only one of them has."""

import re
from uuid import UUID

import typer

MIN_PREFIX = 4
_PREFIX = re.compile(r"[0-9a-f]{1,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?")
_HEX = re.compile(r"[0-9a-f]{1,32}")


def parse_id(text: str) -> str:
    """Return an id or its beginning in the usual form, with hyphens. Raises `typer.BadParameter`."""
    given = text.strip().lower()
    digits = given.replace("-", "")
    is_prefix = _HEX.fullmatch(given) is not None or _PREFIX.fullmatch(given) is not None
    if not is_prefix or not MIN_PREFIX <= len(digits) <= 32:
        raise typer.BadParameter(
            f"{text[:100]!r} is not an id. Pass the whole id, or its first {MIN_PREFIX} or more characters"
        )
    cuts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(part for part in cuts if part)


def whole_id(text: str) -> UUID | None:
    """Return the id, None for a prefix."""
    return UUID(text) if len(text) == 36 else None
