"""Loading extensions and contexts from a module or a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zndraw_joblib.jobs.loading import (
    CannotLoad,
    NothingToServe,
    TargetBroken,
    TargetMissing,
    load_context,
    load_extensions,
)
from zndraw_joblib.worker.serving import Runner
from zndraw_joblib.worker.tasks import ClaimedTask

SOURCE = """
from abc import abstractmethod
from sdk.jobs import Add
from zndraw_joblib import Extension

class Later(Extension):
    category = "analysis"
    other: "Sooner | None" = None
    def run(self, vis, **kwargs):
        return vis

class Sooner(Extension):
    category = "analysis"
    def run(self, vis, **kwargs):
        return vis

class Abstract(Extension):
    category = "analysis"

class _Private(Sooner):
    pass

class Unsorted(Extension):
    def run(self, vis, **kwargs):
        return vis

Alias = Sooner
number = 1

def context():
    return "context"
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Return a function that writes a file and returns its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, source: str) -> str:
        (tmp_path / name).write_text(source)
        return str(tmp_path / name)

    return make


def test_only_extensions_defined_in_the_module_are_loaded(write: Callable[[str, str], str]) -> None:
    """In their order, once each; none that is imported, abstract or private."""
    path = write("by_path.py", SOURCE)
    write("by_name.py", SOURCE)
    for target in (path, "by_name"):
        assert [cls.__name__ for cls in load_extensions(target)] == ["Later", "Sooner", "Unsorted"]
    assert load_extensions(path)[1] is load_extensions(path)[1]
    assert load_context(f"{path}:context")() == "context"
    assert load_context("by_name:context")() == "context"


def test_each_loading_error_has_its_class_and_text(
    write: Callable[[str, str], str], subtests: pytest.Subtests
) -> None:
    """Each mistake has an exception class and a sentence."""
    for target, source, error, text in [
        ("absent_module", None, TargetMissing, "There is no module 'absent_module'"),
        ("absent.py", None, TargetMissing, r"There is no file 'absent.py': .* has no Python file"),
        ("broken_syntax", "def (", TargetBroken, "not valid Python"),
        ("broken_import", "import absent_library", TargetBroken, "No module named 'absent_library'"),
        ("broken_body", "1 / 0", TargetBroken, "ZeroDivisionError"),
        ("broken_bodi.py", None, TargetMissing, r"'broken_bodi.py' \(did you mean 'broken_body.py'\?\)"),
        ("empty_module", "from sdk.jobs import Add", NothingToServe, "defines no extension"),
    ]:
        with subtests.test(target=target, source=source, error=error, text=text):
            if source is not None:
                write(f"{target}.py", source)
            with pytest.raises(error, match=text):
                load_extensions(target)


def test_a_context_must_be_a_function(write: Callable[[str, str], str], subtests: pytest.Subtests) -> None:
    """A bare name, a missing name and a number are refused."""
    for target in ("context", "only_context:absent", "only_context:number"):
        with subtests.test(target=target):
            write("only_context.py", SOURCE)
            with pytest.raises(CannotLoad):
                load_context(target)


class Echo:
    def run(self, vis: Any) -> Any:
        """Return the context."""
        return vis


def test_each_task_gets_its_context(subtests: pytest.Subtests) -> None:
    """The factory is called for each task, with the task if it takes an argument."""
    for case, context, vis in [
        ("none", None, None),
        ("plain", lambda: "plain", "plain"),
        ("of-task", lambda task: task.room_id, "room-1"),
        ("class", dict, {}),
    ]:
        with subtests.test(case):
            task = ClaimedTask("1", "room-1:a:Echo", "room-1", Echo(), 1, {}, None)  # type: ignore[arg-type]
            assert Runner(context)(task) == vis


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("self", "too many positional arguments"),
        ("self, task", "multiple values for argument 'task'"),
        ("self, vis, atoms", "missing a required argument: 'atoms'"),
    ],
)
def test_a_run_without_vis_is_not_served(
    write: Callable[[str, str], str], caplog: pytest.LogCaptureFixture, arguments: str, reason: str
) -> None:
    """Each of its tasks would fail; the warning shows how to define it."""
    source = f"""
from zndraw_joblib import Extension

class Good(Extension):
    category = "analysis"
    async def run(self, vis, *, task): ...

class Wrong(Extension):
    category = "analysis"
    def run({arguments}): ...
"""
    assert [cls.__name__ for cls in load_extensions(write("signatures.py", source))] == ["Good"]
    assert f"Wrong.run cannot be called, so it is not served: {reason}" in caplog.text
    assert "run(self, vis, *, task)" in caplog.text
