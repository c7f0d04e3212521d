"""The reference of all problems."""

import inspect
from collections import defaultdict

from generate import openapi
from zndraw_joblib.wire.problems import PROBLEMS, REMEDIES, ProblemException

_HEAD = """\
# Problems

Generated from the code by `make generate`. Every error response is a problem
([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)), of the media type `application/problem+json`. Its `type`
is the path of a page on the server, `/v1/problems/<name>`, with the text of this reference. The Python SDK
raises the class of the same name, which is also a builtin exception. Some problems are never a response: they
are the `error_code` of a task that ended without success.

| status | name | class in Python | also a |
|---|---|---|---|
"""


def page() -> str:
    """Return a table of all problems by status, and a section for each."""
    kinds = sorted(PROBLEMS.values(), key=lambda kind: (kind.status, kind.problem_id()))
    rows = [_row(kind) for kind in kinds]
    users = _operations()
    return _HEAD + "\n".join([*rows, *(_section(kind, users[kind.problem_id()]) for kind in kinds)]) + "\n"


def _row(kind: type[ProblemException]) -> str:
    name = kind.problem_id()
    builtin = next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
    also = "" if builtin == "Exception" else f"`{builtin}`"
    return f"| {kind.status} | [`{name}`](#{name}) | `{kind.__name__}` | {also} |"


def _section(kind: type[ProblemException], operations: list[str]) -> str:
    title = f"\n## {kind.problem_id()}\n\n**{kind.status} {kind.title}.** {inspect.getdoc(kind)}\n"
    remedy = f"\nWhat to do: {REMEDIES[kind]}\n"
    return title + remedy + (f"\nReturned by {', '.join(operations)}.\n" if operations else "")


def _operations() -> dict[str, list[str]]:
    """Return which operations return each problem; those that all return are said to be so."""
    document = openapi.document()["paths"]
    every = [operation for methods in document.values() for operation in methods.values()]
    found = defaultdict(list)
    for operation in every:
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                for kind in content.get("examples", {}):
                    found[kind].append(f"`{operation['operationId']}`")
    with_identity = sum(operation["security"] != [] for operation in every)
    for kind, names in found.items():
        if len(names) >= with_identity:
            found[kind] = ["every operation that needs an identity"]
    return found
