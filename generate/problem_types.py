"""The error classes of the TypeScript client, one for each problem, made from the classes of the contract."""

import inspect
from collections.abc import Iterator

from zndraw_joblib.wire.problems import PROBLEMS, ProblemException, problem_for

_HEAD = """\
/**
 * A class for each problem of the server. `make generate` writes this file; do not edit it.
 */
import { ProblemError, type ProblemClass } from "./errors.js";
"""


def text() -> str:
    """Return the module; a class comes after its base class."""
    kinds = list(PROBLEMS.values())
    return "\n".join(
        [
            _HEAD,
            *map(_class, kinds),
            "/** The classes by the last part of the `type` of their problem. */",
            "export const PROBLEMS: Readonly<Record<string, ProblemClass>> = {",
            *(f'    "{kind.problem_id()}": {kind.__name__},' for kind in kinds),
            "};\n",
            "/** The classes of errors of hosts, by their status. */",
            "export const BY_STATUS: Readonly<Record<number, ProblemClass>> = {",
            *_by_status(),
            "};\n",
        ]
    )


def _class(kind: type[ProblemException]) -> str:
    base = next(base for base in kind.__bases__ if issubclass(base, ProblemException))
    parent = "ProblemError" if base is ProblemException else base.__name__
    doc = " ".join((inspect.getdoc(kind) or "").split())
    lines = [
        f"/** {kind.status}: {doc} */",
        f"export class {kind.__name__} extends {parent} {{",
        f'    override readonly name: string = "{kind.__name__}";',
        "}\n",
    ]
    return "\n".join(lines)


def _by_status() -> Iterator[str]:
    for status in sorted({kind.status for kind in PROBLEMS.values()}):
        kind = type(problem_for(status))
        if kind is not ProblemException:
            yield f"    {status}: {kind.__name__},"
