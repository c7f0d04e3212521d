"""The files that `make generate` writes are current."""

import pytest
from generate import ROOT
from generate.files import FILES

from zndraw_joblib.wire.problems import PROBLEMS, REMEDIES

# The types need Node; tests/typescript compares them.
TEXTS = [path for path in FILES if path.suffix != ".ts"]


def test_the_committed_files_are_current(subtests: pytest.Subtests) -> None:
    """A change of the code changes the files."""
    assert TEXTS
    for path in TEXTS:
        with subtests.test(path.name):
            assert FILES[path]() == path.read_text(encoding="utf-8"), "run `make generate`"


def test_every_problem_is_explained_in_the_docs() -> None:
    """The reference has its status, its class and a remedy, under the name that is in its type."""
    page = (ROOT / "docs" / "reference" / "problems.md").read_text(encoding="utf-8")
    assert set(REMEDIES) == set(PROBLEMS.values())
    for kind, cls in PROBLEMS.items():
        _, _, section = page.partition(f"\n## {kind}\n\n**{cls.status} {cls.title}.** ")
        assert REMEDIES[cls] in section.partition("\n## ")[0], kind
        assert f"| {cls.status} | [`{kind}`](#{kind}) | `{cls.__name__}` |" in page
