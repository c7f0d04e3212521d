"""Looking into a queue and mending it by hand, with a real server and real workers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import wait_until

from cli.conftest import Place
from cli.program import Program, Serving
from zndraw_joblib.contract.messages import JobRegisterRequest, TaskResponse
from zndraw_joblib.worker.rest import RestApi


class Job:
    """A job in a room of its own, and a worker that does as it is told."""

    def __init__(self, remote: RestApi, room: str) -> None:
        self.remote, self.room = remote, room
        registered = remote.register(room, JobRegisterRequest(category="analysis", name="Slow"))
        assert registered.worker_id is not None
        self.name, self.worker_id = registered.full_name, registered.worker_id

    def claim(self) -> TaskResponse | None:
        """Claim a task."""
        return self.remote.claim(self.worker_id)[0].task


@pytest.fixture
def job(place: Place, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Return a job of the test's own."""
    with place.server.connect() as connection:
        job = Job(RestApi(connection), f"mending-{request.node.name[:60]}")
        yield job
        job.remote.remove_worker(job.worker_id, 5)


def test_a_task_waits_as_its_caller_wishes(place: Place, job: Job) -> None:
    """Each option reaches the task; `explain` and `task` say when it will go."""
    options = ["--priority", "5", "--max-attempts", "2", "--expires-in", "7200"]
    delayed, dated = place.program.each(
        [
            ["submit", job.name, *options, "--delay", "3600"],
            ["submit", job.name, "--run-at", "2100-01-31T18:00:00Z"],
        ]
    )
    task_id = delayed.out.strip()
    task, other = place.caller.get_task(task_id), place.caller.get_task(dated.out.strip())
    assert task.run_at is not None
    assert task.expires_at is not None
    assert (task.run_at - task.created_at).total_seconds() == pytest.approx(3600, abs=5)
    assert (task.expires_at - task.created_at).total_seconds() == pytest.approx(7200, abs=5)
    assert (task.priority, other.run_at.isoformat() if other.run_at else None) == (
        5,
        "2100-01-31T18:00:00+00:00",
    )
    why, as_json, shown = place.program.each(
        [["explain", task_id], ["explain", task_id, "--json"], ["task", task_id]]
    )
    assert why.out.splitlines()[0] == "code\tdetail"
    assert "scheduled\t" in why.out
    assert [reason["code"] for reason in json.loads(as_json.out)["reasons"]] == ["scheduled"]
    assert dict(line.split(maxsplit=1) for line in shown.out.splitlines())["run_at"].startswith("in ")


def test_wishes_that_do_not_fit_are_misuses(place: Place) -> None:
    """In one line, before anything is sent."""
    cases = {
        "--priority=5000": "priority: ",
        "--delay=-1": "delay_seconds: ",
        "--run-at=soon": "'soon'",
        "--expires-in=0": "expires_in_seconds: ",
        "--max-attempts=0": "max_attempts: ",
    }
    both = ["--delay=1", "--run-at=2100-01-01"]
    done = place.program.each([["submit", "Show", *option] for option in [*([case] for case in cases), both]])
    for one, text in zip(done, [*cases.values(), "not both"], strict=True):
        assert (one.code, one.is_refusal) == (2, True), one
        assert text in one.err


def test_a_task_is_taken_from_its_worker_ended_and_tried_again(place: Place, job: Job) -> None:
    """Each by a command that shows the task; its history tells of all of it."""
    task_id = str(job.remote.submit(job.room, job.name, {}).id)
    assert job.claim() is not None
    released, failed, again, refused = place.program.each(
        [
            ["release", task_id],
            ["fail", task_id, "no disk", "--json"],
            ["retry", task_id, "--json"],
            ["retry", task_id],
        ]
    )
    assert dict(line.split(maxsplit=1) for line in released.out.splitlines())["status"] == "pending"
    ended = json.loads(failed.out)
    assert (ended["status"], ended["error"], ended["error_code"]) == (
        "failed",
        "no disk",
        "failed-by-operator",
    )
    assert json.loads(again.out)["status"] == "pending"
    assert "pending" in refused.err
    history, as_json = place.program.each(
        [["task", task_id, "--history"], ["task", task_id, "--history", "--json"]]
    )
    header, *lines = history.out.splitlines()
    assert header.split("\t") == ["at", "status", "attempt", "worker", "until", "reason", "error"]
    told = [line.split("\t")[1] for line in lines]
    assert told == ["pending", "claimed", "pending", "failed", "pending"]
    assert [step["status"] for step in json.loads(as_json.out)["transitions"]] == told


def test_a_job_is_paused_and_resumed(place: Place, job: Job) -> None:
    """By its full name, or by its name alone from its room."""
    task_id = str(job.remote.submit(job.room, job.name, {}).id)
    paused, why = place.program.each([["pause", "Slow", "--room", job.room], ["explain", task_id]])
    assert "paused   True" in paused.out
    assert "paused\t" in why.out
    assert job.claim() is None
    assert json.loads(place.program.ok("resume", job.name, "--json"))["paused"] is False
    assert job.claim() is not None


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drained_worker_ends_well(place: Place, processes: str) -> None:
    """Its process ends with 0, and in a row nobody takes its place."""
    room = f"drained-{processes}"

    def workers() -> set[Any]:
        return {
            id
            for job in place.caller.jobs(room).items
            if job.full_name.startswith(room)
            for id in job.workers
        }

    worker = place.program.start("worker", "my_jobs.py", "--room", room, "--processes", processes)
    try:
        wait_until(lambda: len(workers()) == int(processes) or worker.poll() is not None)
        done = place.program.each([["drain", str(id)] for id in workers()])
        assert ["drain           True" in one.out for one in done] == [True] * int(processes)
        out, err = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert (worker.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert not workers()


def test_the_sweeper_is_looked_at_and_switched(program: Program) -> None:
    """Its mode and its last cycle; what it would do with a silent worker and its task, and does not."""
    with Serving(program, WORKER_TIMEOUT_SECONDS="0.4", SWEEPER_INTERVAL_SECONDS="0.2") as server:
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        observing, both = program.each(
            [["sweeper", "--mode", "observe", "--json"], ["sweeper", "--preview", "--mode", "off"]]
        )
        assert json.loads(observing.out)["mode"] == "observe"
        assert (both.code, both.is_refusal) == (2, True)
        with server.connect() as connection:
            job = Job(RestApi(connection), "silent")
            task_id = str(job.remote.submit(job.room, job.name, {}).id)
            assert job.claim() is not None
        preview = wait_until(
            lambda: (done := program.run("sweeper", "--preview")).out.count("\n") == 3 and done
        )
        assert "1 are silent" in preview.err
        header, *lines = [line.split("\t") for line in preview.out.splitlines()]
        assert header == ["what", "id", "before", "after", "reason", "run_at"]
        assert [line[:4] for line in lines] == [
            ["worker", str(job.worker_id), "", "removed"],
            ["task", task_id, "claimed", "failed"],
        ]
        shown = dict(line.split(maxsplit=1) for line in program.ok("sweeper").splitlines())
        assert (shown["mode"], shown["stale"]) == ("observe", "1")
