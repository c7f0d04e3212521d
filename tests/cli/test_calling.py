"""Calling jobs and looking at them, with a real server and a real worker process."""

import json
import os
import subprocess
import sys

from waiting import wait_until

from cli.conftest import Place


def test_submit_waits_for_the_result(place: Place) -> None:
    """The result alone is on standard output, as JSON; what else is said is not."""
    done = place.program.run("submit", "Show", "value=[1, 2]", "other=some text", "--wait")
    assert done.code == 0
    assert json.loads(done.out) == {"value": [1, 2], "other": "some text", "vis": "vis of default"}
    assert done.err.startswith("Task ")


def test_a_payload_may_be_json(place: Place) -> None:
    """Given as a whole, with values that replace some of it, in a room of one's own."""
    payload = json.dumps({"value": None, "other": {"deep": True}})
    arguments = ("@global:analysis:Show", "--json", payload, "value=NaN", "--room", "lab", "--wait")
    result = json.loads(place.program.ok("submit", *arguments))
    assert result == {"value": "NaN", "other": {"deep": True}, "vis": "vis of lab"}


def test_a_failed_task_fails_its_command(place: Place) -> None:
    """The task's error is the one line on standard error."""
    said = place.program.refused("submit", "Fail", "--wait")
    assert said.endswith("failed: RuntimeError: it broke in two lines\n")


def test_submit_prints_the_id_of_a_task_to_look_at(place: Place) -> None:
    """`task` shows it, `cancel` says why it is too late."""
    task_id = place.program.ok("submit", "Show", "value=1").strip()
    place.caller.wait_for(task_id, 10)
    as_json, as_text, cancelled = place.program.each(
        [["task", task_id, "--json"], ["task", task_id], ["cancel", task_id]]
    )
    shown = json.loads(as_json.out)
    assert (shown["id"], shown["status"], shown["payload"]) == (task_id, "completed", {"value": 1})
    lines = dict(line.split(maxsplit=1) for line in as_text.out.splitlines())
    assert (lines["id"], lines["created_by"]) == (task_id, "first-start")
    assert "it has ended" in cancelled.err


def test_a_pending_task_is_cancelled(place: Place) -> None:
    """By its id, before anybody has claimed it."""
    with place.server.connect() as api:
        body = {"category": "analysis", "name": "Unserved"}
        url = f"{api.base_url}/v1/joblib/rooms/empty/jobs"
        assert api.http.put(url, json=body, headers=api.get_headers()).status_code == 201
    task_id = place.program.ok("submit", "empty:analysis:Unserved").strip()
    assert place.caller.get_task(task_id).room_id == "empty"
    cancelled, listed = place.program.each(
        [["cancel", task_id], ["tasks", "--room", "empty", "--status", "cancelled"]]
    )
    assert "cancelled" in cancelled.out
    assert listed.out.splitlines()[1].startswith(f"{task_id}\tempty:analysis:Unserved\tcancelled\t")


def test_a_job_is_found_by_its_name_alone_if_there_is_one(place: Place) -> None:
    """Otherwise the refusal says which there are."""
    with place.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/twins/jobs"
        api.http.put(url, json={"category": "analysis", "name": "Twin"}, headers=api.get_headers())
    several, none, unknown, misnamed, unfit = place.program.each(
        [
            ["submit", "Twin", "--room", "twins"],
            ["submit", "Nope"],
            ["submit", "@global:analysis:Nope"],
            ["submit", "a:b"],
            ["submit", "Picky", "number=x"],
        ]
    )
    assert all(done.is_refusal for done in (several, none, unknown, misnamed, unfit))
    assert "twins:analysis:Twin" in several.err
    assert "@global:modifiers:Twin" in several.err
    assert "@global:analysis:Show" in none.err
    assert "'@global:analysis:Nope' not found" in unknown.err
    assert "is not room:category:name" in misnamed.err
    assert "payload/number" in unfit.err


def test_lists_are_for_people_and_for_programs(place: Place) -> None:
    """Tab-separated lines below a header where standard output is no terminal, or JSON."""
    task_id = place.program.ok("submit", "Show", "--room", "list").strip()
    place.caller.wait_for(task_id, 10)
    room = ("--room", "list")
    tasks, as_json, jobs, jobs_as_json, workers = place.program.each(
        [["tasks", *room], ["tasks", *room, "--json"], ["jobs"], ["jobs", "--json"], ["workers", *room]]
    )
    header, line = tasks.out.splitlines()
    assert header.split("\t") == ["task", "job", "status", "created", "took", "error"]
    assert line.split("\t")[:3] == [task_id, "@global:analysis:Show", "completed"]
    [task] = json.loads(as_json.out)
    assert task["id"] == task_id
    assert "@global:analysis:Show\t1" in jobs.out.splitlines()
    assert "@global:analysis:Show" in {job["full_name"] for job in json.loads(jobs_as_json.out)}
    assert task["worker_id"] in workers.out


def test_a_reader_may_stop_early(place: Place) -> None:
    """A closed pipe is no error to talk about."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "zndraw_joblib", "jobs"]
    done = subprocess.run(command, env=place.program.env, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_several_processes_are_several_workers(place: Place) -> None:
    """Ctrl-C ends them all, and the jobs that they alone served."""
    worker = place.program.start("worker", "my_jobs.py", "--processes", "2", "--room", "row")
    try:
        wait_until(lambda: [len(job.workers) for job in place.caller.jobs("row").items].count(2) == 4)
        result = json.loads(place.program.ok("submit", "row:analysis:Show", "--wait"))
        assert result["vis"] is None
    finally:
        worker.send_signal(2)
        out, err = worker.communicate(timeout=20)
    assert (worker.returncode, out) == (0, "")
    assert "2 processes serve my_jobs.py in row" in err
    assert not [job for job in place.caller.jobs("row").items if job.full_name.startswith("row:")]
