"""The JavaScript of the documentation, which tests run in a page."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def functions(page: str) -> str:
    """Return the functions in the JavaScript of a page of the documentation, without their calls."""
    snippets = re.findall(r"^```js\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    of_one = re.compile(r"^(?:async )?function .*?^}\n", re.MULTILINE | re.DOTALL)
    return "".join(found for snippet in snippets for found in of_one.findall(snippet))
