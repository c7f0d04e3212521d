"""Generate the pages of the Python API from the table of public names; mkdocstrings fills them in."""

import zndraw_joblib
import zndraw_joblib.testing

# The modules of each page, by the beginning of their names; the first that fits counts.
_PAGES = {
    "jobs": (
        "Jobs",
        (
            *("jobs.functions", "jobs.extensions", "wire.policy", "jobs.task_context", "wire.progress"),
            *("jobs.results", "jobs.codecs", "jobs.batches", "jobs.outputs"),
        ),
    ),
    "workers": ("Workers", ("worker",)),
    "client": ("Clients", ("client",)),
    "testing": ("Testing", ("testing",)),
    "hosts": ("Hosts", ("server", "cli.server", "jobs.logs")),
    "problems": ("Errors", ("wire.problems",)),
    "messages": ("Messages", ("wire", "jobs")),
}
# What readers look for comes first on its page.
_FIRST = ("job", "Queue", "TaskHandle", "AsyncQueue", "JobManager", "JobLib")
# All errors have the methods of their two bases, which the page describes once.
_WITHOUT_INHERITED = {"problems"}


def pages() -> dict[str, str]:
    """Return the text of each page by its path; a public name that no page has raises `ValueError`."""
    texts: dict[str, list[str]] = {name: [] for name in _PAGES}
    for name, module in sorted(zndraw_joblib._MODULE_OF.items(), key=_place):
        page = _page_of(module)
        texts[page].append(_entry(f"{module}.{name}", page))
    texts["testing"] += _testing()
    return {
        f"reference/python/{name}.md": "\n".join([f"# {_PAGES[name][0]}\n\n{_INTRODUCTION}", *entries])
        for name, entries in texts.items()
        if entries
    }


_INTRODUCTION = "Import these names from `zndraw_joblib`. They are loaded on first use.\n"


def _entry(path: str, page: str) -> str:
    options = "    options:\n      inherited_members: false\n" if page in _WITHOUT_INHERITED else ""
    return f"::: zndraw_joblib.{path}\n{options}"


def _testing() -> list[str]:
    """Return the part of the page about tests with the package `testing` and the fixtures of its plugin."""
    modules = zndraw_joblib.testing._MODULE_OF
    names = [name for name in modules if name not in zndraw_joblib.__all__]
    return [
        "## Queues and jobs of tests\n\nImport these names from `zndraw_joblib.testing`.\n",
        *(_entry(f"testing.{modules[name]}.{name}", "testing") for name in names),
        "## Fixtures\n\npytest finds them once the package is installed.\n",
        "::: zndraw_joblib.testing.plugin\n    options:\n      show_root_heading: false\n",
    ]


def _place(entry: tuple[str, str]) -> tuple[int, int]:
    """Return the place of a name on its page: after `_FIRST` by the order of the beginnings of modules."""
    name, module = entry
    beginnings = _PAGES[_page_of(module)][1]
    at = next(at for at, beginning in enumerate(beginnings) if module.startswith(beginning))
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), at)


def _page_of(module: str) -> str:
    for name, (_, beginnings) in _PAGES.items():
        if module.startswith(beginnings):
            return name
    raise ValueError(f"sitegen.python_api has no page for the public names of {module}: add one to _PAGES")
