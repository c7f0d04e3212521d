"""Show files of the repository as pages."""

import ast
import json
from pathlib import Path

from sitegen import ROOT

_LANGUAGES = {
    ".py": "python", ".js": "js", ".mjs": "js", ".ts": "ts", ".json": "json", ".yaml": "yaml", ".yml": "yaml",
    ".toml": "toml", ".ini": "ini", ".service": "ini", ".html": "html", ".conf": "nginx", ".sh": "bash",
}  # fmt: skip
_MAX_BYTES = 60_000


def page_of(source: Path) -> str:
    """Return a page with the content of a file."""
    title = f"# {source.relative_to(ROOT)}\n\n"
    if source.suffix == ".ipynb":
        return title + "\n\n".join(_cell(cell) for cell in json.loads(source.read_text())["cells"]) + "\n"
    text = source.read_bytes()
    if len(text) > _MAX_BYTES:
        return f"{title}This file has {len(text):,} bytes; it is in the repository.\n"
    return f"{title}~~~~{_LANGUAGES.get(source.suffix, 'text')}\n{text.decode().rstrip()}\n~~~~\n"


def _cell(cell: dict[str, str | list[str]]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"~~~~python\n{text}\n~~~~"


def summary(source: Path) -> str:
    """Return the first sentence of a file: of its docstring, or of its first comment."""
    text = source.read_text()
    if source.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    first = text.partition("\n")[0]
    return first.lstrip("#/ ").strip() if first.startswith(("#", "//")) else ""


def listing() -> str:
    """Return a page that lists the files of examples/ and deploy/."""
    parts = ["# Example files\n\nThe files of `examples/` and `deploy/`. Tests run or check each of them."]
    for folder, title in (("examples", "Examples"), ("deploy", "Deployment")):
        rows = [
            f"| [`{one.relative_to(ROOT)}`]({one.relative_to(ROOT)}.md) | {summary(one)} |"
            for one in sorted((ROOT / folder).rglob("*"))
            if one.is_file() and "__pycache__" not in one.parts and one.name != "__init__.py"
        ]
        parts.append("\n".join([f"## {title}\n", "| file | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"
