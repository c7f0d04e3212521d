"""The generated files, each with the function that returns its text, in the order in which they are made."""

from collections.abc import Callable
from pathlib import Path

from generate import DOCUMENT, ROOT, event_types, events, openapi, problems, types

_TYPES = ROOT / "src" / "zndraw_joblib" / "server" / "types"
FILES: dict[Path, Callable[[], str]] = {
    DOCUMENT: openapi.text,
    DOCUMENT.with_name("problems.md"): problems.page,
    DOCUMENT.with_name("events.md"): events.page,
    _TYPES / "rest.d.ts": types.rest,
    _TYPES / "events.d.ts": event_types.text,
}
