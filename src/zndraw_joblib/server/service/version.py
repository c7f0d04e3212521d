"""The release of the server: of the package, of Python, of the database and of its schema."""

import json
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from zndraw_joblib.contract.operations import Version
from zndraw_joblib.server.store import version as store
from zndraw_joblib.server.store.database import Transaction

_NAME = "zndraw-joblib"


async def get(tx: Transaction, build: str | None) -> Version:
    """Return the versions of this process and of its database; `build` is what the operator calls it."""
    of_database = await store.get(tx)
    return Version(
        version=distribution(_NAME).version,
        build=build or installed_commit(),
        python=platform.python_version(),
        database=of_database.database,
        schema_version=of_database.schema,
    )


@cache
def installed_commit() -> str | None:
    """Return the commit from which pip has installed the package, None if it was no repository."""
    try:
        origin = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    commit = origin.get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None
