"""The tokens that this user holds, by the URL of their server, in a file that nobody else can read.

A token is found for the URL it was kept for, and for no other.
"""

import json
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from platformdirs import user_config_path

from zndraw_joblib.cli.refusal import Misuse, Refusal

_PORTS = {"http": 80, "https": 443}
_LOOPBACK = "127.0.0.1"


def path() -> Path:
    """Return where the file is; ``ZNDRAW_JOBLIB_CREDENTIALS`` names another place."""
    named = os.environ.get("ZNDRAW_JOBLIB_CREDENTIALS")
    return Path(named) if named else user_config_path("zndraw-joblib", appauthor=False) / "credentials.json"


def canonical(url: str) -> str:
    """Return the one way to write a server's URL; localhost is 127.0.0.1. Raises `Misuse`."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise Misuse(f"{url!r} is not a URL: {error}") from error
    if port is None or not parts.hostname:
        raise Misuse(f"{url!r} is not the URL of a server: it must look like http://127.0.0.1:8000")
    host = _LOOPBACK if parts.hostname == "localhost" else parts.hostname
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}"


def kept() -> dict[str, str]:
    """Return all tokens by canonical URL. Raises `Refusal` for a file that cannot be read."""
    try:
        tokens = json.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Refusal(f"The file of tokens {path()} cannot be read: {error}") from error
    if not isinstance(tokens, dict) or not all(isinstance(token, str) for token in tokens.values()):
        raise Refusal(f"The file of tokens {path()} is not a map of URLs to tokens; repair or remove it")
    return tokens


def keep(url: str, token: str) -> None:
    """Keep a token for a URL, in place of an earlier one. Raises `OSError`, `Refusal`."""
    tokens = {**kept(), canonical(url): token}
    folder = path().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes a file of mode 0600; whoever reads meanwhile sees the old one or the new one, whole.
    number, draft = tempfile.mkstemp(prefix=".credentials-", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(json.dumps(tokens, indent=2) + "\n")
        Path(draft).replace(path())
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
