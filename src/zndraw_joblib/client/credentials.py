"""This user's tokens by server URL, in a file that only this user can read.

A token is used for the URL it was saved for, and for no other.
"""

import json
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from platformdirs import user_config_path

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = "127.0.0.1"
_FIX_URL = (
    "Set --url or ZNDRAW_JOBLIB_URL, or in Python the argument url, to a URL like http://127.0.0.1:8000"
)


class InvalidUrl(ValueError):
    """A text is not the URL of a server."""


class UnreadableCredentials(Exception):
    """The credentials file cannot be read, or has no tokens."""


def path() -> Path:
    """Return the path of the file; ``ZNDRAW_JOBLIB_CREDENTIALS`` overrides it."""
    override = os.environ.get("ZNDRAW_JOBLIB_CREDENTIALS")
    if override:
        return Path(override)
    return user_config_path("zndraw-joblib", appauthor=False) / "credentials.json"


def canonical(url: str) -> str:
    """Return the canonical form of a server's URL, with 127.0.0.1 for localhost. Raises `InvalidUrl`."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidUrl(f"{url!r} is not a URL: {error}. {_FIX_URL}") from error
    if port is None or not parts.hostname:
        raise InvalidUrl(f"{url!r} is not the URL of a server: http:// or a host is missing. {_FIX_URL}")
    host = _LOOPBACK if parts.hostname == "localhost" else parts.hostname
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}"


def load() -> dict[str, str]:
    """Return all tokens by canonical URL. Raises `UnreadableCredentials` if the file cannot be read."""
    try:
        tokens = json.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnreadableCredentials(
            f"The credentials file {path()} cannot be read: {error}. Repair or remove it"
        ) from error
    if not isinstance(tokens, dict) or not all(isinstance(token, str) for token in tokens.values()):
        raise UnreadableCredentials(
            f"The credentials file {path()} is not a JSON object of URLs and tokens. Repair or remove it"
        )
    return tokens


def save(url: str, token: str) -> None:
    """Save the token of a URL and replace an earlier one. Raises `OSError`, `UnreadableCredentials`."""
    tokens = {**load(), canonical(url): token}
    folder = path().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates a file of mode 0600, and the rename is atomic: a reader sees the old or the new file.
    descriptor, draft = tempfile.mkstemp(prefix=".credentials-", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(tokens, indent=2) + "\n")
        Path(draft).replace(path())
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
