"""`run_job` runs a job without a server."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sdk.batch_jobs import measure, measure_later

from testing.tested_jobs import Area, Flaky, Later, Report
from zndraw_joblib import Extension, InvalidPayload, InvalidRoomId, LogLevel, TaskContext, job
from zndraw_joblib.testing import run_batch, run_job


def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


class Grid(Extension):
    """Return what only a codec can send."""

    category: ClassVar[str] = "analysis"

    def run(self, vis: Any, *, task: TaskContext) -> Any:
        """Return an array, or what JSON does not know."""
        task.log("careful", LogLevel.WARNING)
        return {"grid": np.eye(2), "room": task.room_id} if vis is None else vis


def test_result_progress_and_log() -> None:
    """A class with a payload and an instance give the same."""
    for run in (run_job(Area, {"width": 3, "height": 2}), run_job(Area(width=3, height=2))):
        assert (run.result, run.error) == (6, None)
        assert run.progress is not None
        assert (run.progress.current, run.progress.total, run.progress.unit) == (2, 2, "sides")
        assert run.log == ["in thread MainThread"]


def test_a_coroutine_can_be_cancelled() -> None:
    """A job that sets its event is cancelled at its next `await`."""

    async def stop(task: TaskContext) -> str:
        task.cancelled.set()
        await asyncio.sleep(60)
        return "late"

    assert run_job(job(stop)).error == "CancelledError"


def test_a_function_is_a_job_too() -> None:
    """With `@job` it is a class; without it the error names the decorator."""
    assert run_job(job(double), {"number": 4}).result == 8
    with pytest.raises(TypeError, match="@job"):
        run_job(double, {"number": 4})


def test_a_result_is_what_a_client_reads() -> None:
    """It went through the codecs; what they cannot send fails as in production."""
    run = run_job(Grid, room="lab")
    assert (run.result["grid"] == np.eye(2)).all()
    assert run.result["room"] == "lab"
    assert [(line.text, line.level) for line in run.lines] == [("careful", "warning")]
    assert "cannot be sent as JSON" in str(run_job(Grid, vis=object()).error)


def test_a_file_is_read(tmp_path: Path) -> None:
    """The result of a file is its bytes."""
    run = run_job(Report, {"text": "all well"}, vis=tmp_path)
    assert (run.result, run.content_type) == (b"all well", "text/plain")


def test_a_wrong_payload_is_refused_as_by_the_server() -> None:
    """The schema is checked before the class."""
    with pytest.raises(InvalidPayload, match="payload/width"):
        run_job(Area, {"width": 0})
    with pytest.raises(InvalidRoomId):
        run_job(Area, {"width": 1}, room="a:b")
    with pytest.raises(TypeError, match="its own payload"):
        run_job(Area(width=1), {"width": 1})
    with pytest.raises(TypeError, match="is no job"):
        run_job(int, {})


@job(max_attempts=3, non_retryable=("ValueError",))
def strict(month: str) -> int:
    """Return the number of a month."""
    return int(month)


def test_a_failure_has_its_text_and_its_traceback() -> None:
    """Reading the result of a failed run raises; `retry` is false for a failure that is final."""
    run = run_job(Flaky, {"failures": 1})
    assert (run.error, run.retry) == ("ValueError: attempt 1 fails", True)
    assert run.failure is not None
    assert run.failure.type == "ValueError"
    with pytest.raises(AssertionError, match=r"has no result: ValueError: attempt 1 fails\n(.*\n)*.*in run"):
        assert run.result
    assert run_job(Flaky, {"failures": 1}, attempt=2).result == 2
    assert run_job(Flaky(is_final=True)).retry is False
    assert run_job(strict, {"month": "x"}).retry is False


def test_a_coroutine_runs_in_a_loop_of_its_own() -> None:
    """Without a running event loop."""
    assert run_job(Later, vis=1).result == "1"


async def test_a_coroutine_runs_beside_the_loop_of_a_test() -> None:
    """Also in a test that is a coroutine itself."""
    assert run_job(Later, vis=2).result == "2"


def test_it_loads_no_server() -> None:
    """A worker's installation has no library of the server: then the class alone checks the payload."""
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"jsonschema_rs", "fastapi", "sqlalchemy", "starlette"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.path.insert(0, "tests")
from sdk.batch_jobs import measure, measure_later
from testing.tested_jobs import Area
from zndraw_joblib.testing import run_batch, run_job
print(run_job(Area, {"width": 2}).result, run_job(Area, {"width": 0}).error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.stdout.startswith("2.0 The payload does not fit Area: width: ")


def test_a_batch_runs_with_one_call() -> None:
    """Each payload has a run; one that the class refuses is left out, one that fails is alone."""
    for batch in (measure, measure_later):
        runs = run_batch(batch, [{"text": "abc"}, {"text": "unclean"}, {"text": "bad", "how": "final"}])
        assert runs[0].result == [3, 2, "small"]
        assert "this word is not accepted" in (runs[1].error or "")
        assert (runs[2].error, runs[2].retry) == ("NonRetryable: bad", False)
    assert run_batch(measure, [{"text": "a"}, {"text": "b"}])[1].log == ["this is b"]
    assert run_batch(measure, []) == []
    assert run_job(measure, {"text": "abc"}).result == [3, 1, "small"]
    assert run_job(measure_later, {"text": "bad", "how": "final"}).error == "NonRetryable: bad"


def test_a_job_that_takes_no_batch_is_refused() -> None:
    """The error names the option, and the helper that runs it."""
    with pytest.raises(TypeError, match=r"Area takes no batch: use run_job\(\), or @job\(batch=Batch"):
        run_batch(Area, [{"width": 3}])
