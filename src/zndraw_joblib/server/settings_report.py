"""The settings in force: the value and the source of each one, what it means, and misspelt variables."""

import os
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import SecretStr
from pydantic_settings import PyprojectTomlConfigSettingsSource

from zndraw_joblib.contract.operations import SettingEntry, Settings
from zndraw_joblib.contract.variables import PREFIX, describe, unknown_variables
from zndraw_joblib.server.settings import ALIASES, JobLibSettings, ServerSettings

HIDDEN = "***"
_URLS = frozenset({"database_url", "redis_url"})
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ROW = re.compile(r"\| `(\w+)` \| .*? \| (.*) \|")


def report(settings: JobLibSettings) -> Settings:
    """Return all settings in the order of their class, without secrets."""
    fields = type(settings).model_fields
    values = settings.model_dump(mode="json")
    sources = _sources(settings)
    entries = []
    for name, field in fields.items():
        if name in ALIASES:
            continue
        default = field.get_default(call_default_factory=True)
        is_secret = isinstance(getattr(settings, name), SecretStr) or "SecretStr" in str(field.annotation)
        entry = SettingEntry(
            name=name,
            value=None if is_secret else _shown(name, values[name]),
            default=None if is_secret else _shown(name, default),
            source=sources[name],
            is_secret=is_secret,
            description=descriptions().get(name, ""),
        )
        entries.append(entry)
    unknown = unknown_variables({*fields, *ServerSettings.model_fields})
    return Settings(settings=entries, unknown=[describe(*found) for found in unknown.items()])


def without_password(url: str) -> str:
    """Return a URL in which `***` replaces the password and all values of its query that may be secret."""
    try:
        parts = urlsplit(url)
        before, at, host = parts.netloc.rpartition("@")
        user, colon, _ = before.partition(":")
        netloc = f"{user}{colon}{HIDDEN if colon else ''}{at}{host}"
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return HIDDEN
    # A password may have a `/`, `?` or `#` that is not escaped; then it is in another part.
    if "@" in parts.path + parts.query + parts.fragment:
        return f"{parts.scheme}://{HIDDEN}"
    query = urlencode([(name, HIDDEN if _is_secret(name) else value) for name, value in given], safe="*/:")
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


@cache
def descriptions() -> dict[str, str]:
    """Return what each setting means: the reference of the settings has it in its tables."""
    found = [_ROW.fullmatch(line) for line in reference().read_text(encoding="utf-8").splitlines()]
    return {row[1]: _LINK.sub(r"\1", row[2]) for row in found if row}


def reference() -> Path:
    """Return the file of the reference: in the installed package, or in the repository."""
    here = Path(__file__).resolve().parent
    installed = here / "settings.md"
    return installed if installed.is_file() else here.parents[2] / "docs" / "reference" / "settings.md"


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in ("pass", "secret", "token", "key"))


def _shown(name: str, value: Any) -> Any:
    if name in _URLS and isinstance(value, str):
        return without_password(value)
    return str(value) if isinstance(value, Path) else value


def _sources(settings: JobLibSettings) -> dict[str, str]:
    """Return where the value of each setting is from.

    A value that differs from that of new settings was an argument, or was changed since.
    """
    kind = type(settings)
    try:
        new: JobLibSettings | None = kind()
        in_file = set(PyprojectTomlConfigSettingsSource(kind)())
    except (ValueError, OSError):
        new, in_file = None, set()
    variables = {name.upper().removeprefix(PREFIX).lower() for name in os.environ if _is_variable(name)}
    return {
        name: "argument"
        if new is None or getattr(new, name) != getattr(settings, name)
        else _source(name, variables, in_file)
        for name in kind.model_fields
    }


def _is_variable(name: str) -> bool:
    return name.upper().startswith(PREFIX)


def _source(name: str, variables: Collection[str], in_file: Collection[str]) -> str:
    names = {name, *[alias for alias, own in ALIASES.items() if own == name]}
    if not names.isdisjoint(variables):
        return "environment"
    return "default" if names.isdisjoint(in_file) else "file"
