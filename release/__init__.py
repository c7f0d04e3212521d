"""Check what a release consists of: `make release-check` runs every step on a fresh clone."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
# The programs of requirements/release.txt.
TOOLS = ROOT / ".venv-release" / "bin"
PYTHONS = ("3.11", "3.12", "3.13")


class ReleaseError(Exception):
    """What makes a release unfit to be published, one problem a line."""
