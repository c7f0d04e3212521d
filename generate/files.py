"""The generated files, each with the function that returns its text, in the order in which they are made."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from generate import (
    DOCUMENT,
    ROOT,
    event_types,
    events,
    openapi,
    problem_types,
    problems,
    project,
    stubs,
    sync_client,
    types,
)

_TYPES = ROOT / "src" / "zndraw_joblib" / "server" / "types"
FILES: dict[Path, Callable[[], str]] = {
    DOCUMENT: openapi.text,
    DOCUMENT.with_name("problems.md"): problems.page,
    DOCUMENT.with_name("events.md"): events.page,
    **{
        sync_client.CLIENT / f"{name}.py": partial(sync_client.text, name)
        for name in ("rest", "schedules", "webhooks", "operators", "queue")
    },
    _TYPES / "rest.d.ts": types.rest,
    _TYPES / "events.d.ts": event_types.text,
    ROOT / "clients" / "typescript" / "src" / "problems.ts": problem_types.text,
    **{
        ROOT / "src" / package.replace(".", "/") / "__init__.pyi": partial(stubs.text, package)
        for package in stubs.PACKAGES
    },
    **project.FILES,
}
