"""Explain, change and drain, with a real server and real workers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from cli.conftest import Stack
from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.client import calls
from zndraw_joblib.wire.messages import JobRegisterRequest, TaskResponse, WorkerInfo
from zndraw_joblib.worker.rest import RestApi


class Job:
    """A job in a room of its own, and a worker that the test controls."""

    def __init__(self, rest: RestApi, room: str) -> None:
        self.rest, self.room = rest, room
        registered = rest.register(room, JobRegisterRequest(category="analysis", name="Slow"))
        assert registered.worker_id is not None
        self.name, self.worker_id = registered.full_name, registered.worker_id

    def claim(self) -> TaskResponse | None:
        """Claim a task."""
        return self.rest.claim(self.worker_id)[0].task


@pytest.fixture
def job(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Return a job for one test."""
    with stack.server.connect() as connection:
        job = Job(RestApi(connection), f"admin-{request.node.name[:60]}")
        yield job
        job.rest.remove_worker(job.worker_id, 5)


def test_submit_options_reach_the_task(stack: Stack, job: Job) -> None:
    """Schedule, priority and limits reach the task; `explain` and `task` show the schedule."""
    options = ["--priority", "5", "--max-attempts", "2", "--expires-in", "2h"]
    delayed, dated = stack.program.run_all(
        [
            ["submit", job.name, *options, "--delay", "3600"],
            ["submit", job.name, "--run-at", "2100-01-31T18:00:00Z"],
        ]
    )
    task_id = delayed.out.strip()
    task, other = stack.client.get_task(task_id), stack.client.get_task(dated.out.strip())
    assert task.run_at is not None
    assert task.expires_at is not None
    assert (task.run_at - task.created_at).total_seconds() == pytest.approx(3600, abs=5)
    assert (task.expires_at - task.created_at).total_seconds() == pytest.approx(7200, abs=5)
    assert (task.priority, other.run_at.isoformat() if other.run_at else None) == (
        5,
        "2100-01-31T18:00:00+00:00",
    )
    explained, as_json, shown = stack.program.run_all(
        [["explain", task_id], ["explain", task_id, "--json"], ["task", task_id]]
    )
    assert explained.out.splitlines()[0] == "code\tdetail\tremedy"
    assert "scheduled\t" in explained.out
    assert f"\t'zndraw-joblib run-now {task_id[:18]}' queues it now" in explained.out
    assert [reason["code"] for reason in json.loads(as_json.out)["reasons"]] == ["scheduled"]
    assert dict(line.split(maxsplit=1) for line in shown.out.splitlines())["run_at"].endswith(" from now")


def test_a_unique_task_is_submitted_once(stack: Stack, job: Job) -> None:
    """A second submit prints the id of the first task; --debounce replaces its payload."""
    key = ["--unique", "report"]
    first, second, replaced = stack.program.run_all(
        [
            ["submit", job.name, "x=1", *key, "--debounce", "1h"],
            ["submit", job.name, "x=2", *key],
            [
                "submit",
                job.name,
                "x=3",
                "--unique",
                '{"key": "report", "on_conflict": "replace"}',
                "--delay",
                "2h",
            ],
        ]
    )
    assert first.out == second.out == replaced.out
    assert (first.err, second.err) == ("", "No new task: the task below holds this unique key.\n")
    task = stack.client.get_task(first.out.strip())
    assert (task.payload, task.unique_key) == ({"x": 3}, "report")
    explained = stack.program.run("explain", str(task.id))
    assert "unique_key\tIt holds the unique key 'report' until it has ended" in explained.out


def test_invalid_submit_options_are_usage_errors(stack: Stack) -> None:
    """Each prints one error line, before the command sends a request."""
    cases = {
        "--priority=5000": "--priority: ",
        "--delay=-1": "--delay: ",
        "--run-at=soon": "--run-at 'soon' is not a time",
        "--expires-in=0": "--expires-in: ",
        "--max-attempts=0": "--max-attempts: ",
        "--unique=": "--unique.key: ",
        '--unique={"scope": "all"}': "--unique.scope: ",
        "--unique={": "--unique '{' is not valid JSON",
        "--debounce=5": "--debounce: it needs --unique",
        "--debounce=soon": "--debounce",
        "--webhook=ftp://hooks.invalid": "--webhook.url: ",
        '--webhook={"url": "https://hooks.invalid", "secret": "short"}': "--webhook.secret: ",
    }
    both = ["--delay=1", "--run-at=2100-01-01"]
    done = stack.program.run_all(
        [["submit", "Show", *option] for option in [*([case] for case in cases), both]]
    )
    for one, text in zip(done, [*cases.values(), "not both"], strict=True):
        assert (one.code, one.is_error_line) == (2, True), one
        assert text in one.err


def test_release_fail_and_retry_change_a_task(stack: Stack, job: Job) -> None:
    """Each command shows the changed task, and the history has all changes."""
    task_id = str(job.rest.send_call(calls.submit(job.room, job.name, {})).id)
    assert job.claim() is not None
    released, failed, again, refused = stack.program.run_all(
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
    history, as_json = stack.program.run_all(
        [["task", task_id, "--history"], ["task", task_id, "--history", "--json"]]
    )
    header, *lines = history.out.splitlines()
    columns = ["at", "status", "attempt", "worker", "until", "reason", "error", "progress", "lines"]
    assert header.split("\t") == columns
    statuses = [line.split("\t")[1] for line in lines]
    assert statuses == ["pending", "claimed", "pending", "failed", "pending"]
    assert [step["status"] for step in json.loads(as_json.out)["transitions"]] == statuses


def test_a_task_may_have_taken_no_time(stack: Stack, job: Job) -> None:
    """A worker reports the start and the end of a short task together, so the server records one time."""
    command = "submit", job.name, "--idempotency-key", job.room
    task_id = stack.program.ok(*command).strip()
    claimed = job.claim()
    assert claimed is not None
    report = {"id": task_id, "attempt": claimed.attempt}
    both = [json.dumps(report | {"status": status}).encode() for status in ("running", "completed")]
    assert job.rest.report_tasks(job.worker_id, both) == [None, None]
    done = stack.program.run(*command, "--wait")
    assert (done.code, done.err) == (0, f"Task {task_id} completed in 0 ms.\n")


def test_a_released_claim_is_no_attempt(stack: Stack, job: Job) -> None:
    """The number of an attempt counts attempts, for `task`, its history and its log."""
    task_id = stack.program.ok("submit", job.name).strip()
    assert job.claim() is not None
    stack.program.ok("release", task_id)
    claimed = job.claim()
    assert claimed is not None
    log = {"first": 1, "lines": [{"at": "2026-01-02T03:04:05Z", "text": "now it runs", "level": "info"}]}
    report = {"id": task_id, "attempt": claimed.attempt, "status": "running", "log": log}
    assert job.rest.report_tasks(job.worker_id, [json.dumps(report).encode()]) == [None]
    task = ["task", task_id]
    shown, history, lines, none = stack.program.run_all(
        [task, [*task, "--history"], [*task, "--logs", "--attempt", "1"], [*task, "--logs", "--attempt", "2"]]
    )
    assert re.search(r"^attempts +1$", shown.out, re.MULTILINE)
    steps = [line.split("\t")[1:3] for line in history.out.splitlines()[1:]]
    assert steps == [["pending", ""], ["claimed", ""], ["pending", ""], ["claimed", "1"], ["running", "1"]]
    assert "now it runs" in lines.out
    assert "has no attempt 2; it has had 1" in none.err


def test_a_job_is_paused_and_resumed(stack: Stack, job: Job) -> None:
    """A job is named by its full name, or by its short name and its room."""
    task_id = str(job.rest.send_call(calls.submit(job.room, job.name, {})).id)
    paused, explained = stack.program.run_all([["pause", "Slow", "--room", job.room], ["explain", task_id]])
    assert "paused   True" in paused.out
    assert "paused\t" in explained.out
    assert job.claim() is None
    listed, of_room, as_json = stack.program.run_all(
        [["pauses"], ["jobs", "--room", job.room], ["pauses", "--json"]]
    )
    assert f"{job.room}\t{job.name}\t" in listed.out
    assert f"{job.name}\tpaused\t" in of_room.out
    assert [pause["room"] for pause in json.loads(as_json.out) if pause["job"] == job.name] == [job.room]
    assert json.loads(stack.program.ok("resume", job.name, "--json"))["paused"] is False
    assert job.claim() is not None


def test_rooms_and_the_queue_are_paused(stack: Stack, job: Job) -> None:
    """A room without a job, or all rooms, until a time; the list has them, and a resume ends one."""
    job.rest.send_call(calls.submit(job.room, job.name, {}))
    program = stack.program
    paused, rooms = program.run_all([["pause", "--room", job.room, "--until", "2h"], ["pauses"]])
    assert job.room in paused.out
    assert job.room in rooms.out
    assert job.claim() is None
    assert json.loads(program.ok("resume", "--room", job.room, "--json"))["paused"] is False
    [pause] = json.loads(program.ok("pause", "--all-rooms", "--json"))["pauses"]
    assert (pause["room"], pause["until"]) == (None, None)
    assert job.claim() is None
    program.ok("resume", "--all-rooms")
    assert job.claim() is not None
    for wrong in (["pause"], ["pause", "x", "--all-rooms"]):
        assert "Name a job, or pass --room ROOM" in program.run(*wrong).err


def test_a_job_is_registered_without_a_worker_and_forgotten(stack: Stack, tmp_path: Path) -> None:
    """Its tasks wait, and `explain` says since when; a job with a pending task is not forgotten."""
    name, program, schema = "early:jobs:area", stack.program, tmp_path / "schema.json"
    schema.write_text('{"type": "object", "required": ["width"]}')
    options = ["--schema", str(schema), "--policy", '{"prefer": {"memory_gb": {">=": 40}}}', "--json"]
    made = program.ok("register", name, *options)
    assert json.loads(made)["without_workers"] == "queue"
    assert re.search(r"workers +0(, none for .*)?\n(.*\n)*prefer +memory_gb>=40\n", program.ok("jobs", name))
    task_id = program.ok("submit", name, "width=3").strip()
    assert f"No worker serves {name} since " in program.ok("explain", task_id)
    assert "pending" in program.error_of("forget", name)
    program.ok("cancel", task_id)
    program.ok("schedules", "put", "nightly", name, "width=3", "--every", "1h")
    show = ["schedules", "show", "nigthly", "--room", "early"]
    forgotten, none, nearest = program.run_all([["forget", name], ["forget", name], show])
    assert "1 schedule of it cannot submit tasks until then: nightly in room early." in forgotten.err
    assert "not found" in none.err
    program.ok("register", name)
    assert "did you mean 'nightly'?" in nearest.err
    assert "Did you mean early:jobs:area?" in program.error_of("forget", "early:jobs:aera")
    program.ok("schedules", "delete", "nightly", "--room", "early")
    assert "full name" in program.error_of("register", "area", code=2)
    wrong = {
        '{"max_attempts": 0}': "--policy.max_attempts: ",
        '{"max_pending_per_rom": 1}': "(did you mean 'max_pending_per_room'?)",
        '{"limits": [{"max_in_flight": 1, "kye": "/x"}]}': "--policy.limits.0.kye: ",
        '{"limits": [{"max_in_flight": 1, "key": "x"}]}': "write room, submitter, or a JSON pointer",
        "[]": "--policy is not an object",
    }
    for policy, text in wrong.items():
        assert text in program.error_of("register", name, "--policy", policy, code=2)
    schema.write_text("{")
    assert "is not JSON" in program.error_of("register", name, "--schema", str(schema), code=2)


def test_a_job_of_all_rooms_is_not_paused_in_one(stack: Stack) -> None:
    """A user who means the room is told how."""
    error = stack.program.error_of("pause", "Show", "--room", "lab", code=2)
    assert "@global:analysis:Show is a job of all rooms" in error


def test_tasks_of_a_full_name_are_those_of_its_room(stack: Stack) -> None:
    """Without `--room`."""
    program, name = stack.program, "lone:jobs:area"
    program.ok("register", name)
    task_id = program.ok("submit", name).strip()
    assert task_id in program.ok("tasks", "--job", name)
    done = program.run("tasks", "bulk", "cancel", "--job", name, "--yes")
    assert "1 task in room lone cancelled" in done.err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drained_worker_exits_with_0(stack: Stack, processes: str) -> None:
    """The supervisor of several processes does not replace a drained one."""
    room = f"drained-{processes}"

    def workers() -> set[Any]:
        return {
            id
            for job in stack.client.jobs(room).items
            if job.full_name.startswith(room)
            for id in job.workers
        }

    worker = stack.program.start("worker", "my_jobs.py", "--room", room, "--processes", processes)
    try:
        wait_until(lambda: len(workers()) == int(processes) or worker.poll() is not None)
        done = stack.program.run_all([["drain", str(id)] for id in workers()])
        assert ["drain           True" in one.out for one in done] == [True] * int(processes)
        out, err = worker.communicate(timeout=TIMEOUT)
    finally:
        worker.kill()
    assert (worker.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert not workers(), err


def test_a_worker_is_found_by_its_name(stack: Stack) -> None:
    """By `workers`, `tasks --worker` and `drain`. A name of two workers, or of none, is an error."""
    with stack.server.connect() as connection:
        rest = RestApi(connection)
        ids = [rest.create_worker(info=WorkerInfo(name=name)).id for name in ("beef-1", "twin", "twin")]
        shown, tasks, drained, twin, near = stack.program.run_all(
            [
                ["workers", "beef-1", "--json"],
                ["tasks", "--worker", "beef-1"],
                ["drain", "beef-1"],
                ["drain", "twin"],
                ["drain", "beef-2"],
            ]
        )
        assert json.loads(shown.out)["id"] == str(ids[0])
        assert tasks.code == 0
        assert str(ids[0]) in drained.out
        assert "2 workers have the name 'twin': " in twin.err
        assert str(ids[1]) in twin.err
        assert "whose name it is (did you mean 'beef-1'?)" in near.err
        assert {twin.code, near.code} == {1}
        for worker_id in ids:
            rest.remove_worker(worker_id, 5)


def test_the_sweeper_is_shown_and_changed(program: Program) -> None:
    """`sweeper` shows the mode and the last cycle; --preview shows changes without making them."""
    with RunningServer(program, WORKER_TIMEOUT_SECONDS="0.4", SWEEPER_INTERVAL_SECONDS="0.2") as server:
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        observing, both = program.run_all(
            [["sweeper", "--mode", "observe", "--json"], ["sweeper", "--preview", "--mode", "off"]]
        )
        assert json.loads(observing.out)["mode"] == "observe"
        assert (both.code, both.is_error_line) == (2, True)
        with server.connect() as connection:
            job = Job(RestApi(connection), "silent")
            task_id = str(job.rest.send_call(calls.submit(job.room, job.name, {})).id)
            assert job.claim() is not None
        preview = wait_until(
            lambda: (done := program.run("sweeper", "--preview")).out.count("\n") == 3 and done
        )
        assert "1 of 1 worker sent no heartbeat" in preview.err
        header, *lines = [line.split("\t") for line in preview.out.splitlines()]
        assert header == ["what", "id", "before", "after", "reason", "run_at"]
        assert [line[:4] for line in lines] == [
            ["worker", str(job.worker_id), "", "removed"],
            ["task", task_id, "claimed", "failed"],
        ]
        # A server on a busy machine forgives silent workers for a while.
        shown = wait_until(lambda: (fields := _fields(program.ok("sweeper")))["stale"] == "1" and fields)
        assert shown["mode"] == "observe"


def _fields(output: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in output.splitlines())
