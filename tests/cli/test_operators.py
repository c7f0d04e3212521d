"""Search tasks, and list jobs and workers of all rooms, with a real server and a real worker."""

import json
import signal
from datetime import datetime
from functools import partial

import httpx
from waiting import wait_until

from cli.conftest import Stack
from cli.program import TIMEOUT
from cli.terminal import OnTerminal


def test_tasks_are_found_in_all_rooms(stack: Stack) -> None:
    """Each option narrows the list; `--json` prints the tasks, `--oldest-first` turns their order."""
    failing = stack.program.ok("submit", "Fail", "--room", "search-a").strip()
    passing = stack.program.ok("submit", "Show", "--room", "search-b", "value=needle-7").strip()
    worker = stack.client.wait_for(failing, TIMEOUT).worker_id
    stack.client.wait_for(passing, TIMEOUT)
    both = ["--room", "search-a", "--room", "search-b"]
    cases: dict[str, tuple[list[str], set[str]]] = {
        "rooms": (both, {failing, passing}),
        "text": (["--all-rooms", "--text", "NEEDLE-7"], {passing}),
        "error": (["--all-rooms", "--text", "it broke", "--since", "1h", "--job", "Fail"], set()),
        "status": ([*both, "--status", "failed", "--status", "cancelled"], {failing}),
        "job": ([*both, "--job", "Show"], {passing}),
        "code": ([*both, "--error-code", "error"], {failing}),
        "worker": ([*both, "--worker", str(worker)], {failing, passing}),
        "user": ([*both, "--created-by", "another"], set()),
        "until": ([*both, "--until", "1h"], set()),
        "since": ([*both, "--since", "1h"], {failing, passing}),
    }
    commands = [["tasks", *options, "--json"] for options, _ in cases.values()]
    *done, table, unknown = stack.program.run_all(
        [*commands, ["tasks", *both, "--oldest-first"], ["tasks", *both, "--job", "Nope"]]
    )
    for one, (name, (_, expected)) in zip(done, cases.items(), strict=True):
        found = {task["id"] for task in json.loads(one.out)}
        assert failing in found if name == "error" else found == expected, name
    head, *lines = table.out.splitlines()
    assert head.split("\t") == [
        "task",
        "job",
        "room",
        "status",
        "due",
        "created",
        "took",
        "error",
        "tags",
        "waits",
    ]
    assert [line.split("\t")[0] for line in lines] == [failing, passing]
    assert "it broke" in lines[0]
    assert (unknown.code, unknown.is_error_line) == (1, True)


def test_jobs_and_workers_of_all_rooms_are_listed(stack: Stack) -> None:
    """Jobs have counts; a worker has its name and host, and is shown with its jobs."""
    jobs, as_json, workers = stack.program.run_all(
        [["jobs", "--all-rooms"], ["jobs", "--all-rooms", "--json"], ["workers", "--json", "--limit", "500"]]
    )
    head, *lines = jobs.out.splitlines()
    assert head.split("\t") == ["job", "state", "until", "workers", "queued", "oldest", "held", "failed"]
    assert "@global:analysis:Show" in {line.split("\t")[0] for line in lines}
    assert {"counts", "slots"} <= set(json.loads(as_json.out)[0])
    [worker] = [each for each in json.loads(workers.out) if "@global:analysis:Show" in each["jobs"]]
    table, shown = stack.program.run_all([["workers", "--limit", "500"], ["workers", worker["id"]]])
    assert worker["host"] in table.out
    fields = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert (fields["id"], fields["pid"]) == (worker["id"], str(worker["pid"]))
    assert "@global:analysis:Show" in fields["jobs"]


def test_settings_in_force_are_listed_and_explained(stack: Stack) -> None:
    """`config` asks the server, `config --local` reads this environment; a secret has no value."""
    local = ["ZNDRAW_JOBLIB_ADMIN_TOKEN=a-secret-of-the-tests", "ZNDRAW_JOBLIB_MAX_STREAMS=7"]
    few, everything, as_json, here, one, unknown = stack.program.run_all(
        [
            ["config"],
            ["config", "--all"],
            ["config", "--json"],
            [*local, "ZNDRAW_JOBLIB_MAX_STREAM=7", "config", "--local"],
            ["config", "ZNDRAW_JOBLIB_MAX_STREAMS"],
            ["config", "max_stream"],
        ]
    )
    assert few.out.splitlines()[0].split("\t") == ["setting", "value", "default", "source"]
    assert len(few.out.splitlines()) < len(everything.out.splitlines())
    assert "worker_timeout_seconds\t60" in everything.out
    assert {"settings", "unknown"} <= set(json.loads(as_json.out))
    assert "max_streams\t7\t10000\tenvironment" in here.out
    assert "admin_token\t(secret)" in here.out
    assert "a-secret" not in here.out
    assert "ZNDRAW_JOBLIB_MAX_STREAM " in here.err
    fields = dict(line.split(maxsplit=1) for line in one.out.splitlines())
    assert (fields["setting"], fields["default"]) == ("max_streams", "10000")
    assert fields["about"]
    assert (unknown.code, unknown.is_error_line) == (2, True)
    assert "Did you mean max_streams?" in unknown.err


def test_retention_is_shown_and_tried(stack: Stack) -> None:
    """The defaults of `serve`, times to try, and those of a job, which `jobs` shows too."""
    policy = {"keep": {"completed": "12h", "failed": "forever"}, "batch": {"max": 32, "key": "/model"}}
    put = ["register", "@global:jobs:kept", "--policy", json.dumps(policy)]
    assert stack.program.run(*put).code == 0
    shown, tried, of_job, as_json, job, wrong, refused = stack.program.run_all(
        [
            ["retention"],
            ["retention", "--completed", "1.5h", "--cancelled", "forever"],
            ["retention", "kept"],
            ["retention", "kept", "--failed", "60", "--json"],
            ["jobs", "kept"],
            ["retention", "--failed", "soon"],
            ["register", "@global:jobs:kept", "--policy", '{"keep": {"completed": "12 hours"}}'],
        ]
    )
    head, *lines = shown.out.splitlines()
    assert head.split("\t") == ["status", "kept", "set by", "older now"]
    assert [line.split("\t")[:3] for line in lines[:3]] == [
        ["completed", "30 days", "the server's settings"],
        ["failed", "90 days", "the server's settings"],
        ["cancelled", "30 days", "the server's settings"],
    ]
    assert tried.out.splitlines()[1].split("\t")[:3] == ["completed", "1.5 hours", "this command"]
    assert tried.out.splitlines()[3].split("\t")[:3] == ["cancelled", "for ever", "this command"]
    assert of_job.out.splitlines()[1].split("\t")[:3] == ["completed", "12 hours", "the job"]
    assert json.loads(as_json.out)["failed"] == {"keep_seconds": 60, "source": "proposed", "older": 0}
    assert "completed 12 hours, failed for ever" in job.out
    assert "up to 32 with equal /model, waits 0.1 s for more" in job.out
    assert (wrong.code, wrong.is_error_line) == (1, True)
    assert "query.failed: 'soon' is no time to keep tasks: pass seconds, or 90s, 15m, 12h, 30d" in wrong.err
    assert "--policy.keep.completed: '12 hours' is no time to keep tasks: pass seconds, or 90s" in refused.err


def ends_are_in_the_statistics(stack: Stack, ids: list[str]) -> bool:
    """Return whether the statistics have read the ends of these tasks, so that they may be purged."""
    headers = {"Authorization": f"Bearer {stack.server.token}"}
    response = httpx.get(f"{stack.server.url}/v1/joblib/statistics", headers=headers, timeout=TIMEOUT)
    until = datetime.fromisoformat(response.json()["until"])
    ends = [stack.client.get_task(task_id).completed_at for task_id in ids]
    return all(end is not None and end < until for end in ends)


def _purge_typing(text: str, stack: Stack, *wanted: str) -> tuple[int, str]:
    """Purge on a terminal and answer its question with `text`; return the exit code and the last line."""
    with OnTerminal(stack.program, "tasks", "bulk", "purge", *wanted, is_input=True) as command:
        command.read_until("type their number")
        command.write(f"{text}\n")
        code, _ = command.end()
    return code, command.shown.replace("\x1b[0m", "").strip().splitlines()[-1].split(": ")[-1]


def test_failures_are_counted_by_job_and_exception(stack: Stack) -> None:
    """The newest error of each group is an example; --exception selects one."""
    room = ["--room", "failures"]
    failing = [stack.program.ok("submit", "Fail", *room).strip() for _ in range(2)]
    for task_id in failing:
        stack.client.wait_for(task_id, TIMEOUT)
    groups, as_json, none = stack.program.run_all(
        [
            ["tasks", "failures", *room],
            ["tasks", "failures", *room, "--exception", "RuntimeError", "--json"],
            ["tasks", *room, "--exception", "KeyError", "--json"],
        ]
    )
    assert [line.split("\t")[:4] for line in groups.out.splitlines()] == [
        ["failures", "job", "exception", "error"],
        ["2", stack.client.get_task(failing[0]).job_name, "RuntimeError", "it broke in two lines"],
    ]
    assert [group["example"] for group in json.loads(as_json.out)["groups"]] == failing[1:]
    assert json.loads(none.out) == []
    assert groups.err == "2 failed tasks in room failures.\n"


def test_an_exception_that_no_task_has_is_named(stack: Stack) -> None:
    """With the nearest one; and where nothing was looked for, if the room is that of the default."""
    room = ["--room", "misspelt"]
    stack.client.wait_for(stack.program.ok("submit", "Fail", *room).strip(), TIMEOUT)
    typo = ["--exception", "RuntimError"]
    done = stack.program.run_all(
        [
            ["tasks", "failures", *room, *typo],
            ["tasks", *room, *typo],
            ["tasks", "bulk", "retry", *room, *typo, "--yes"],
        ]
    )
    for one in done:
        assert one.code == 0
        assert (
            "No failed task in room misspelt has the exception 'RuntimError' "
            "(did you mean 'RuntimeError'?)." in one.err
        )
    assert "0 tasks in room misspelt queued again." in done[-1].err
    nothing, bulk = stack.program.run_all(
        [
            ["tasks", "failures", "--since", "1s", "--error-code", "none"],
            ["tasks", "bulk", "retry", "--error-code", "none", "--yes"],
        ]
    )
    assert nothing.err == "No failed task in room default. --all-rooms looks in all rooms.\n"
    assert bulk.err == "0 tasks in room default queued again. --all-rooms looks in all rooms.\n"
    with OnTerminal(stack.program, "tasks", "--error-code", "none", is_output=True) as listed:
        assert listed.end()[0] == 0
    assert "0 tasks in room default; --all-rooms looks in all rooms" in listed.shown
    # A job of its own: tasks of others may wait for the worker.
    stack.program.ok("register", "@global:jobs:lonely")
    stack.program.ok("submit", "lonely", "--room", "lonely", "--delay", "1h")
    waiting = ["--job", "lonely", "--status", "pending"]
    with OnTerminal(stack.program, "tasks", *waiting, is_output=True) as listed:
        assert listed.end()[0] == 0
    assert "0 tasks in room default; others have some: --room lonely (1)" in listed.shown


def test_several_tasks_are_changed_after_a_preview(stack: Stack) -> None:
    """A preview changes nothing; without a terminal --yes is needed; the audit trail has the action."""
    room = ["--room", "bulk"]
    failing = [stack.program.ok("submit", "Fail", *room).strip() for _ in range(2)]
    for task_id in failing:
        stack.client.wait_for(task_id, TIMEOUT)
    wait_until(partial(ends_are_in_the_statistics, stack, failing))
    bulk = ["tasks", "bulk"]
    wanted = [*room, "--status", "failed"]
    shown, as_json, unconfirmed, misspelt = stack.program.run_all(
        [
            [*bulk, "purge", *wanted, "--preview"],
            [*bulk, "purge", *wanted, "--preview", "--json"],
            [*bulk, "purge", *wanted],
            [*bulk, "delete", *wanted],
        ]
    )
    assert "2 tasks in room bulk would be deleted" in shown.err
    assert {line.split("\t")[0] for line in shown.out.splitlines()[1:]} == set(failing)
    assert json.loads(as_json.out)["count"] == 2
    assert (unconfirmed.code, unconfirmed.is_error_line) == (2, True)
    assert "--yes" in unconfirmed.err
    assert misspelt.code == 2
    assert _purge_typing("y", stack, *wanted) == (1, "'y' is not the number of tasks, 2")
    assert stack.client.get_task(failing[0]).status == "failed"
    assert _purge_typing("2", stack, *wanted) == (0, "2 tasks in room bulk deleted.")
    again, gone, audit, audit_as_json = stack.program.run_all(
        [
            [*bulk, "purge", *wanted, "--yes", "--json"],
            ["tasks", *wanted, "--json"],
            ["audit", "--room", "bulk"],
            ["audit", "--action", "bulk.purge", "--json"],
        ]
    )
    assert json.loads(again.out)["affected"] == 0
    assert json.loads(gone.out) == []
    assert audit.out.splitlines()[0].split("\t")[:4] == ["at", "actor", "action", "target"]
    assert "bulk.purge" in audit.out + audit_as_json.out
    assert json.loads(audit_as_json.out)[0]["actor"] == "operator"


def test_a_question_may_be_left_with_ctrl_c(stack: Stack) -> None:
    """Nothing is changed then. A room that cannot exist is named before anything is asked."""
    bulk = ["tasks", "bulk", "cancel", "--room"]
    impossible = stack.program.run(*bulk, "a/b")
    assert (impossible.code, "'a/b'" in impossible.err, "no slash" in impossible.err) == (2, True, True)
    stack.program.ok("submit", "Show", "--delay", "3600", "--room", "asked")
    with OnTerminal(stack.program, *bulk, "asked", is_input=True) as asked:
        asked.read_until("[y/N]")
        asked.interrupt()
        code, _ = asked.end()
    assert (code, "Nothing was changed" in asked.shown, "Traceback" in asked.shown) == (130, True, False)


def test_top_is_live_on_a_terminal(stack: Stack) -> None:
    """Ctrl-C ends it with exit code 0; in a pipe it prints the state once."""
    once, as_json = stack.program.run_all([["top"], ["top", "--json"]])
    assert once.code == 0
    assert "Waiting" in once.out
    assert "Show" in once.out
    assert {"findings", "counts"} <= set(json.loads(as_json.out))
    with OnTerminal(stack.program, "top", is_output=True) as live:
        live.read_until("last heartbeat")
        live.process.send_signal(signal.SIGINT)
        code, _ = live.end()
    assert (code, "Traceback" in live.shown) == (0, False)


def test_a_prefix_names_a_task(stack: Stack) -> None:
    """A prefix that several ids have, or none, is an error that says so."""
    room = ["--room", "prefixes"]
    first, second = (stack.program.ok("submit", "Show", *room).strip() for _ in range(2))
    common = first[: next(at for at in range(36) if first[at] != second[at])]
    found, ambiguous, unknown = stack.program.run_all(
        [["task", first[:20], "--json"], ["task", common], ["task", "ffffffff-ffff"]]
    )
    assert json.loads(found.out)["id"] == first
    assert (ambiguous.code, ambiguous.is_error_line) == (1, True)
    assert first in ambiguous.err
    assert second in ambiguous.err
    assert "There is no task whose id begins with 'ffffffff-ffff'" in unknown.err


def test_versions_need_their_job(stack: Stack) -> None:
    """The option that is missing is named; a job without earlier versions has nothing to retarget."""
    bulk = ["tasks", "bulk"]
    alone, nothing = stack.program.run_all(
        [
            [*bulk, "cancel", "--version", "1", "--all-rooms", "--yes"],
            [*bulk, "retarget", "--job", "Show", "--room", "versions", "--yes"],
        ]
    )
    assert (alone.code, alone.is_error_line) == (2, True)
    assert "--version" in alone.err
    assert (nothing.code, nothing.err.strip()) == (0, "0 tasks in room versions of the current version.")
