"""Build the documentation site from docs/, the files that its pages link to, and the code."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "site"
