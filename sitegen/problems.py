"""Generate the page of problem types from their classes."""

import inspect

from zndraw_joblib.contract.problems import PROBLEMS

_INTRODUCTION = """\
# Problem types

Every error response is a problem ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). Its `type` is an
address on the server, `/v1/problems/<name>`, which shows the text of this page. The Python SDK raises
the class of the same name.

| status | name | class | also a |
|---|---|---|---|
"""


def page() -> str:
    """Return a table of all problem types by status, and a section for each."""
    kinds = sorted(PROBLEMS.items(), key=lambda item: (item[1].status, item[0]))
    rows = [
        f"| {cls.status} | [`{name}`](#{name}) | `{cls.__name__}` | {_builtins(cls)} |" for name, cls in kinds
    ]
    sections = [
        f"## {name} {{ #{name} }}\n\n**{cls.status} {cls.title}**\n\n{inspect.getdoc(cls)}\n"
        for name, cls in kinds
    ]
    return _INTRODUCTION + "\n".join([*rows, "", *sections])


def _builtins(cls: type[Exception]) -> str:
    found = [base.__name__ for base in cls.__mro__ if base.__module__ == "builtins"]
    return f"`{found[0]}`" if found[0] != "Exception" else ""
