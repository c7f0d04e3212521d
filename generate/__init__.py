"""Generate the files of the repository that are made from the code: `make generate` writes them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "openapi.json"
