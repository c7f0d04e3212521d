"""Submit, list, show and cancel tasks, with a real server and a real worker process."""

import json
import os
import re
import subprocess
import sys

import httpx
from waiting import wait_until

from cli.conftest import Stack
from cli.program import TIMEOUT
from cli.terminal import OnTerminal


def test_submit_waits_for_the_result(stack: Stack) -> None:
    """Standard output has only the result, as JSON; notes go to standard error."""
    done = stack.program.run("submit", "Show", "value=[1, 2]", "other=some text", "--wait")
    assert done.code == 0
    assert json.loads(done.out) == {"value": [1, 2], "other": "some text", "vis": "vis of default"}
    assert done.err.startswith("Task ")


def test_submit_merges_json_and_values(stack: Stack) -> None:
    """KEY=VALUE arguments override fields of --payload; --room sets the task's room."""
    payload = json.dumps({"value": None, "other": {"deep": True}})
    arguments = ("@global:analysis:Show", "--payload", payload, "value=NaN", "--room", "lab", "--wait")
    result = json.loads(stack.program.ok("submit", *arguments))
    assert result == {"value": "NaN", "other": {"deep": True}, "vis": "vis of lab"}


def test_submit_fails_if_the_task_fails(stack: Stack) -> None:
    """The error line has the task's error, in one line, below the traceback of the job."""
    with stack.program.start("submit", "Fail", "--wait") as process:
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (1, "")
    *traceback, error = err.splitlines()
    assert error.startswith("Error: Task ")
    assert error.endswith("failed: RuntimeError: it broke in two lines")
    assert traceback[-2:] == ["RuntimeError: it broke", "in two lines"]


def test_submit_prints_the_task_id(stack: Stack) -> None:
    """`task` shows the task, and `cancel` explains why it is too late."""
    task_id = stack.program.ok("submit", "Show", "value=1").strip()
    stack.client.wait_for(task_id, TIMEOUT)
    as_json, as_text, cancelled = stack.program.run_all(
        [["task", task_id, "--json"], ["task", task_id], ["cancel", task_id]]
    )
    shown = json.loads(as_json.out)
    assert (shown["id"], shown["status"], shown["payload"]) == (task_id, "completed", {"value": 1})
    lines = dict(line.split(maxsplit=1) for line in as_text.out.splitlines())
    assert (lines["id"], lines["created_by"]) == (task_id, "operator")
    assert "it has ended" in cancelled.err


def test_the_schema_decides_whether_a_value_is_text(stack: Stack) -> None:
    """A number is a text for a field of type string; what fits as JSON stays JSON, also for unknown types."""
    optional = {"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]}
    schema = {
        "type": "object",
        "properties": {
            **{
                "month": {"type": "string"},
                "quoted": {"type": "string"},
                "part": optional,
                "none": optional,
                "any": {},
            },
            **{
                "both": {"type": ["string", "number"]},
                "mode": {"enum": ["1", "2"]},
                "steps": {"type": "integer"},
            },
        },
        "$defs": {"Code": {"type": "string"}},
    }
    with stack.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/texts/jobs"
        body = {"category": "analysis", "name": "Month", "schema": schema}
        assert api.http.put(url, json=body, headers=api.get_headers()).status_code == 201
    values = ["month=2026", "part=1.10", "none=null", "any=5", "both=7", "mode=2", "steps=3", "new=4"]
    values.append('quoted="2027"')
    call = ["texts:analysis:Month", *values]
    submitted, scheduled, wrong = stack.program.run_all(
        [
            ["submit", *call, "--json"],
            ["schedules", "put", "monthly", *call, "--every", "1d", "--json"],
            ["submit", *call[:2], "steps=2.5"],
        ]
    )
    payload = {
        "month": "2026",
        "quoted": "2027",
        "part": "1.10",
        "none": None,
        "any": 5,
        "both": 7,
        "mode": "2",
        "steps": 3,
        "new": 4,
    }
    task = json.loads(submitted.out)
    assert task["payload"] == json.loads(scheduled.out)["payload"] == payload
    assert (wrong.code, wrong.err.strip()) == (1, 'Error: payload/steps: 2.5 is not of type "integer"')
    stack.program.ok("cancel", task["id"])


def test_a_pending_task_is_cancelled(stack: Stack) -> None:
    """`cancel` ends a pending task, and `tasks --status cancelled` lists it."""
    with stack.server.connect() as api:
        body = {"category": "analysis", "name": "Unserved"}
        url = f"{api.base_url}/v1/joblib/rooms/empty/jobs"
        assert api.http.put(url, json=body, headers=api.get_headers()).status_code == 201
    task_id = stack.program.ok("submit", "empty:analysis:Unserved").strip()
    assert stack.client.get_task(task_id).room_id == "empty"
    cancelled, listed = stack.program.run_all(
        [["cancel", task_id], ["tasks", "--room", "empty", "--status", "cancelled"]]
    )
    assert "cancelled" in cancelled.out
    assert listed.out.splitlines()[1].startswith(f"{task_id}\tempty:analysis:Unserved\tcancelled\t")


def test_a_submit_to_a_job_without_workers_says_so(stack: Stack) -> None:
    """On standard error, with the remedy, and exit code 0: the task waits."""
    stack.program.ok("register", "idle:analysis:Idle")
    submitted, served = stack.program.run_all(
        [["submit", "idle:analysis:Idle"], ["submit", "Show", "value=1"]]
    )
    assert (submitted.code, served.code, served.err) == (0, 0, "")
    start = f"Task {submitted.out.strip()} waits: No worker serves idle:analysis:Idle"
    assert submitted.err.startswith(start)
    assert submitted.err.endswith("; 'zndraw-joblib worker FILE' starts one.\n")


def test_a_terminal_has_the_link_of_a_task(stack: Stack) -> None:
    """It is short, and the server redirects it to the page of the task."""
    with OnTerminal(stack.program, "submit", "Show", "value=1", is_output=True) as command:
        assert command.end()[0] == 0
    task_id, see = command.shown.split("\r\n")[:2]
    link = f"{stack.server.url}/t/{task_id[:18]}"
    assert see == f"See {link}"
    answer = httpx.get(link, timeout=TIMEOUT)
    assert (answer.status_code, answer.headers["location"]) == (302, f"../#/tasks/{task_id[:18]}")
    with OnTerminal(stack.program, "task", task_id, is_output=True) as shown:
        assert shown.end()[0] == 0
    assert shown.shown.strip().endswith(see)


def test_several_tasks_are_cancelled(stack: Stack) -> None:
    """The refusal of one, or an id that no task has, stops none of the others; the exit code is 1."""
    with stack.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/many/jobs"
        api.http.put(url, json={"category": "analysis", "name": "Unserved"}, headers=api.get_headers())
    submit = ["submit", "analysis:Unserved", "--room", "many"]
    ids = [done.out.strip() for done in stack.program.run_all([submit, submit])]
    ended = stack.program.ok("submit", "Show", "value=1").strip()
    stack.client.wait_for(ended, TIMEOUT)
    done = stack.program.run("cancel", ids[0], "nope", ended, "ffffffff", ids[1])
    assert done.code == 1
    assert [line.split("\t")[0] for line in done.out.splitlines()[1:]] == ids
    wrong, refused, unknown, error = done.err.splitlines()
    assert wrong.startswith("nope: 'nope' is not an id")
    assert refused.startswith(f"{ended}: ")
    assert unknown.startswith("ffffffff: There is no task")
    assert error == "Error: 3 of 5 tasks were not changed; see the reasons above"
    again = stack.program.run("retry", *ids, "--json")
    assert [(task["id"], task["status"]) for task in json.loads(again.out)] == [
        (one, "pending") for one in ids
    ]
    stack.program.ok("cancel", *ids)


def test_a_command_without_effect_says_so(stack: Stack) -> None:
    """A log without a line, and `run-now` of a task that is in its queue; standard output has no note."""
    with stack.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/quiet/jobs"
        api.http.put(url, json={"category": "analysis", "name": "Unserved"}, headers=api.get_headers())
    waiting = stack.program.ok("submit", "quiet:analysis:Unserved", "--room", "quiet").strip()
    ended = stack.program.ok("submit", "Show", "value=1").strip()
    stack.client.wait_for(ended, TIMEOUT)
    unbegun, empty, hastened = stack.program.run_all(
        [["task", waiting, "--logs"], ["task", ended, "--logs"], ["run-now", waiting]]
    )
    reason = "is pending and has had no attempt, so it has no log."
    assert (unbegun.code, unbegun.out, unbegun.err) == (0, "", f"Task {waiting} {reason}\n")
    assert (empty.code, empty.out) == (0, "")
    assert empty.err == f"Attempt 1 of task {ended} has no line in its log.\n"
    assert (hastened.code, hastened.err) == (
        0,
        f"Task {waiting} was in its queue already: nothing was changed.\n",
    )
    stack.program.ok("cancel", waiting)


def test_a_terminal_shows_why_a_task_waits_and_what_to_do(stack: Stack) -> None:
    """Whole, wrapped between words; a paused room has the command that resumes it."""
    stack.program.ok("pause", "--room", "halted")
    task_id = stack.program.ok("submit", "Show", "value=1", "--room", "halted", "--delay", "1h").strip()
    with OnTerminal(stack.program, "explain", task_id, is_output=True) as command:
        assert command.end()[0] == 0
    shown = " ".join(command.shown.split())
    assert "'zndraw-joblib resume --room halted' resumes it" in shown
    assert f"'zndraw-joblib run-now {task_id[:18]}' queues it now" in shown
    assert "Room halted is paused by operator" in shown
    assert "…" not in shown
    stack.program.ok("resume", "--room", "halted")
    stack.program.ok("cancel", task_id)


def test_a_time_of_no_use_is_an_error(stack: Stack) -> None:
    """The end of a pause that is past, the begin of a list that is in the future, and an empty interval."""
    wrong = {
        ("pause", "--room", "attic", "--until", "yesterday"): "--until 'yesterday' is over: it was ",
        ("tasks", "--since", "tomorrow"): "--since 'tomorrow' is in the future: ",
        ("tasks", "--since", "1h", "--until", "2h"): "--since '1h' is not before --until '2h'",
    }
    for done, text in zip(stack.program.run_all(list(wrong)), wrong.values(), strict=True):
        assert (done.code, text in done.err) == (2, True), done
    assert stack.program.run("cancel", "nope").code == 2


def test_a_scheduled_task_is_listed_with_its_time(stack: Stack) -> None:
    """A list has the time at which it enters its queue."""
    task_id = stack.program.ok("submit", "Show", "value=1", "--room", "later", "--delay", "1h").strip()
    head, line = stack.program.ok("tasks", "--room", "later").splitlines()
    row = dict(zip(head.split("\t"), line.split("\t"), strict=True))
    assert row["due"] == stack.client.get_task(task_id).run_at.isoformat()
    stack.program.ok("cancel", task_id)
    assert (
        stack.program.ok("tasks", "--room", "later")
        .splitlines()[1]
        .split("\t")[head.split("\t").index("due")]
        == ""
    )


def test_delayed_tasks_run_now(stack: Stack) -> None:
    """`run-now` takes several ids, as the other commands for tasks do."""
    ids = [
        stack.program.ok("submit", "Show", f"value={number}", "--delay", "1h").strip() for number in range(2)
    ]
    done = stack.program.run("run-now", *ids, "--json")
    assert [task["run_at"] for task in json.loads(done.out)] == [None, None]
    for task in ids:
        assert stack.client.wait_for(task, TIMEOUT).status == "completed"
    refused = stack.program.run("run-now", ids[0])
    assert refused.code == 1
    assert "Only a task that is pending can be run now" in refused.err


def test_a_time_that_is_past_is_said(stack: Stack) -> None:
    """The task is queued at once."""
    done = stack.program.run("submit", "Show", "value=1", "--run-at", "2020-01-01")
    assert done.code == 0
    assert done.err.startswith("--run-at 2020-01-01 is past (2020-01-01 00:00:00 ")
    assert stack.client.wait_for(done.out.strip(), TIMEOUT).status == "completed"


def test_a_short_job_name_must_be_unique(stack: Stack) -> None:
    """If it is ambiguous or unknown, the error names the jobs that exist. Its category may precede it."""
    with stack.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/twins/jobs"
        for category in ("analysis", "modifiers"):
            api.http.put(url, json={"category": category, "name": "Twin"}, headers=api.get_headers())
    several, none, unknown, misnamed, named, unfit = stack.program.run_all(
        [
            ["submit", "Twin", "--room", "twins"],
            ["submit", "Nope"],
            ["submit", "@global:analysis:Nope"],
            ["submit", "modifiers:Nope"],
            ["submit", "modifiers:Twin", "--room", "twins"],
            ["submit", "Picky", "number=x"],
        ]
    )
    assert all(done.is_error_line for done in (several, none, unknown, misnamed, unfit))
    assert "twins:analysis:Twin" in several.err
    assert "twins:modifiers:Twin" in several.err
    assert "@global:analysis:Show" in none.err
    assert "'@global:analysis:Nope' not found" in unknown.err
    assert "sees no job 'modifiers:Nope'" in misnamed.err
    assert stack.client.get_task(named.out.strip()).job_name == "twins:modifiers:Twin"
    assert "payload/number" in unfit.err


def test_lists_are_tab_separated_or_json(stack: Stack) -> None:
    """Without a terminal, lists are a header and tab-separated lines; --json prints JSON."""
    task_id = stack.program.ok("submit", "Show", "--room", "list").strip()
    stack.client.wait_for(task_id, TIMEOUT)
    room = ("--room", "list")
    lists = [["tasks", *room], ["tasks", *room, "--json"], ["jobs"], ["jobs", "--json"], ["workers", *room]]
    tasks, as_json, jobs, jobs_as_json, workers, picky, picky_as_json, submitted = stack.program.run_all(
        [*lists, ["jobs", "Picky"], ["jobs", "Picky", "--json"], ["submit", "Show", "--json", "value=7"]]
    )
    header, line = tasks.out.splitlines()
    columns = ["task", "job", "status", "due", "created", "took", "error", "tags", "waits"]
    assert header.split("\t") == columns
    assert line.split("\t")[:3] == [task_id, "@global:analysis:Show", "completed"]
    [task] = json.loads(as_json.out)
    assert task["id"] == task_id
    assert "@global:analysis:Show\t\t\t1\t" in jobs.out.splitlines()
    assert "@global:analysis:Show" in {job["full_name"] for job in json.loads(jobs_as_json.out)}
    assert task["worker_id"] in workers.out
    assert "number\tinteger\t(required)" in picky.out
    assert "Example: zndraw-joblib submit @global:modifiers:Picky number=1 --wait" in picky.out
    assert json.loads(picky_as_json.out)["schema"]["required"] == ["number"]
    assert json.loads(submitted.out)["payload"] == {"value": 7}


def test_a_closed_pipe_is_no_error(stack: Stack) -> None:
    """If the reader closes the pipe, a command ends without an error line."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "zndraw_joblib", "jobs"]
    done = subprocess.run(command, env=stack.program.env, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_each_worker_process_is_a_worker(stack: Stack) -> None:
    """Ctrl-C ends all processes; the jobs that only they served stay, without workers."""
    worker = stack.program.start("worker", "my_jobs.py", "--processes", "2", "--room", "row")
    try:
        wait_until(lambda: [len(job.workers) for job in stack.client.jobs("row").items].count(2) == 4)
        result = json.loads(stack.program.ok("submit", "row:analysis:Show", "--wait"))
        assert result["vis"] is None
    finally:
        worker.send_signal(2)
        out, err = worker.communicate(timeout=TIMEOUT)
    assert (worker.returncode, out) == (0, "")
    assert "2 processes serve my_jobs.py in row" in err
    jobs = [job for job in stack.client.jobs("row").items if job.full_name.startswith("row:")]
    assert [job.workers for job in jobs] == [[]] * 4


def test_tags_and_trees(stack: Stack) -> None:
    """Tasks are found by a tag or a parent, whose room is the default, and are cancelled with their trees."""
    with stack.server.connect() as api:
        body = {"category": "analysis", "name": "Unserved"}
        url = f"{api.base_url}/v1/joblib/rooms/trees/jobs"
        assert api.http.put(url, json=body, headers=api.get_headers()).status_code == 201
    submit = ["submit", "trees:analysis:Unserved"]
    top = stack.program.ok(*submit, "--tag", "night", "--tag", "customer 7").strip()
    child = stack.program.ok(*submit, "--parent", top, "--tag", "night").strip()
    shown, listed, below, none, preview, wrong, whole, part, cancelled = stack.program.run_all(
        [
            ["task", child],
            ["tasks", "--room", "trees", "--tag", "customer 7"],
            ["tasks", "--root", top[:30]],
            ["tasks", "--parent", child],
            ["tasks", "bulk", "cancel", "--room", "trees", "--tag", "customer 7", "--tree", "--preview"],
            ["tasks", "bulk", "retry", "--tree", "--preview"],
            ["cancel", top, "--tree", "--preview"],
            ["cancel", child, "--tree", "--preview"],
            ["cancel", top, "--tree"],
        ]
    )
    lines = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert (lines["tags"], lines["parent"], lines["root"]) == ("night", top, top)
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [(row[0], row[rows[0].index("tags")]) for row in rows[1:]] == [(top, "night, customer 7")]
    assert [line.split("\t")[0] for line in below.out.splitlines()[1:]] == [child]
    assert len(none.out.splitlines()) == 1
    assert "cancel: 1 task and 1 below in room trees would be cancelled" in preview.err
    assert "--tree is for cancel" in wrong.err
    assert f"Task {top}: 1 task and 1 below, with what waits for them, would be cancelled." in whole.err
    assert (
        f"Task {child}: 1 task and at least 0 below, with what waits for them, would be cancelled."
        in part.err
    )
    assert cancelled.code == 0
    assert f"Task {top}: 1 task and 1 below, with what waits for them, cancelled" in cancelled.err
    assert stack.client.get_task(child).status == "cancelled"


def test_steps(stack: Stack) -> None:
    """A task waits for others, named by beginnings of ids; commands show for what, and cancel a tree."""
    first = stack.program.ok("submit", "Show", "--delay", "1h", "--room", "steps").strip()
    submit = ["submit", "Show", "--room", "steps"]
    group = stack.client.tasks("steps").items[0].id
    then = stack.program.ok(*submit, "--after", first[:30], "--on-failure", "hold").strip()
    last = stack.program.ok(*submit, "--after", then, "--after", first).strip()
    early = stack.program.ok("submit", "Show", "--room", "early", "--delay", "1h").strip()
    early = stack.program.ok("submit", "Show", "--room", "early", "--after", early).strip()
    alone, unknown, lost, shown, before, listed, why, cancelled, now = stack.program.run_all(
        [
            [*submit, "--on-failure", "run"],
            [*submit, "--after", "fffffffff"],
            [*submit, "--after", f"group:{group}"],
            ["task", last],
            ["task", first],
            ["tasks", "--room", "steps"],
            ["explain", then],
            ["cancel", first, "--tree"],
            ["run-now", early],
        ]
    )
    assert (now.code, now.err) == (0, "")
    assert "Add --after" in alone.err
    assert "There is no task" in unknown.err
    assert "group" in lost.err
    lines = dict(re.split("  +", line, maxsplit=1) for line in shown.out.splitlines())
    assert lines["after"] == f"{then} {first}, on failure: fail"
    assert lines["waits for"] == f"{then} {first}"
    lines = dict(re.split("  +", line, maxsplit=1) for line in before.out.splitlines())
    assert lines["successors"] == f"{then} {last}"
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [row[rows[0].index("waits")] for row in rows[1:]] == ["for tasks", "for tasks", ""]
    assert (why.out.splitlines()[1].split("\t")[0], first in why.out) == ("predecessor", True)
    assert cancelled.code == 0
    assert {task.status for task in stack.client.tasks("steps").items} == {"cancelled"}
