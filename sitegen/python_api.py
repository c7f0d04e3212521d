"""Generate the pages of the Python API from the table of public names; mkdocstrings fills them in."""

import zndraw_joblib

# The modules of each page, by the beginning of their names; the first that fits counts.
_PAGES = {
    "jobs": ("Jobs", ("jobs.extensions", "wire.policy", "jobs.task_context", "wire.progress")),
    "workers": ("Workers", ("worker",)),
    "client": ("Clients", ("client",)),
    "testing": ("Testing", ("testing",)),
    "hosts": ("Hosts", ("server", "cli.server", "jobs.logs")),
    "problems": ("Errors", ("wire.problems",)),
    "messages": ("Messages", ("wire", "jobs")),
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path; a public name that no page has raises `ValueError`."""
    texts: dict[str, list[str]] = {name: [] for name in _PAGES}
    for module, names in zndraw_joblib._MODULES.items():
        texts[_page_of(module)] += [f"::: zndraw_joblib.{module}.{name}\n" for name in names]
    return {
        f"reference/python/{name}.md": "\n".join([f"# {_PAGES[name][0]}\n\n{_INTRODUCTION}", *entries])
        for name, entries in texts.items()
        if entries
    }


_INTRODUCTION = "Import these names from `zndraw_joblib`. They are loaded on first use.\n"


def _page_of(module: str) -> str:
    for name, (_, beginnings) in _PAGES.items():
        if module.startswith(beginnings):
            return name
    raise ValueError(f"sitegen.python_api has no page for the public names of {module}: add one to _PAGES")
