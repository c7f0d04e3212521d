"""The jobs, each alone and in a queue."""

import pytest
from rectangles import Tile

from zndraw_joblib import InvalidPayload
from zndraw_joblib.testing import TestQueue, run_job


def test_tiles_are_counted() -> None:
    """One run returns the result, the progress and the log."""
    run = run_job(Tile, {"width": 30, "height": 20})
    assert run.result == 6
    assert run.progress is not None
    assert (run.progress.current, run.progress.total, run.progress.unit) == (2, 2, "rows")
    assert run.log == ["row 0", "row 1"]


def test_a_wrong_payload_is_refused() -> None:
    """As the server refuses it."""
    with pytest.raises(InvalidPayload, match="payload/width"):
        run_job(Tile, {"width": 0, "height": 20})


def test_tiles_that_do_not_fit_are_a_final_failure() -> None:
    """A retry would not help."""
    run = run_job(Tile(width=35, height=20))
    assert run.error == "NonRetryable: tiles of 10 do not fit"
    assert run.retry is False


def test_the_job_in_a_queue(joblib_queue: TestQueue) -> None:
    """The same through registration, submit, claim and report; this needs the extra `server`."""
    joblib_queue.register(Tile)
    joblib_queue.submit(Tile(width=20, height=20))
    [task] = joblib_queue.work()
    assert (task.status, task.result) == ("completed", 4)
    assert joblib_queue.log(task) == ["row 0", "row 1"]
