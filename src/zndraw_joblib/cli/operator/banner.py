"""What the server says once it is ready, on standard error."""

import shlex
import sys
from importlib.metadata import version

from zndraw_joblib.cli.operator.first_start import Keys
from zndraw_joblib.worker.api import DEFAULT_URL


def show(url: str, place: str, keys: Keys | None, *, is_named: bool, processes: int = 1) -> None:
    """Say where the server is and, on a first start, how to use it; the token is shown this once.

    `is_named` tells that the database was named on the command line, so that `token` has to be told too.
    """
    lines = [
        f"zndraw-joblib {version('zndraw-joblib')} serves {url}  (Ctrl-C stops it)",
        f"  database  {place}",
    ]
    if processes > 1:
        lines += [f"  processes {processes}"]
    if keys is not None:
        lines += _first(url, keys, is_named) if keys.made else _again(keys, is_named)
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()


def _first(url: str, keys: Keys, is_named: bool) -> list[str]:
    option = "" if url == DEFAULT_URL else f" --url {shlex.quote(url)}"
    kept = f"It is kept in {keys.kept_in}, where the commands of this user find it."
    return [
        "",
        "This is the first start. A superuser's token was made; it is shown only this once:",
        f"  {keys.made}",
        kept if keys.kept_in else f"{keys.trouble}",
        "",
        "Serve the extensions of a file, call one, make a token for somebody else:",
        f"  zndraw-joblib worker my_jobs.py{option}",
        f"  zndraw-joblib submit MyJob key=value --wait{option}",
        f"  {_create(is_named)}",
        "",
    ]


def _again(keys: Keys, is_named: bool) -> list[str]:
    if keys.kept_in:
        return [f"  token     in {keys.kept_in}"]
    if keys.trouble:
        return [f"  token     {keys.trouble}"]
    return [f"  token     none is kept here; '{_create(is_named)}' makes one"]


def _create(is_named: bool) -> str:
    return f"zndraw-joblib token create NAME{' --database-url URL' if is_named else ''}"
