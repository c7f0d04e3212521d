"""The scenarios: what happens, and what a worker must do."""

from dataclasses import dataclass
from enum import StrEnum

from zndraw_joblib.testing.conformance.steps import (
    Act,
    Advance,
    Drain,
    Ends,
    Exits,
    Heartbeats,
    Idle,
    KillServer,
    Lose,
    Lost,
    Registers,
    RemoveWorker,
    RepeatsClaim,
    Settles,
    Shows,
    Starts,
    StartServer,
    Step,
    StoredBytes,
    Submit,
    Terminate,
    Waits,
)


class Level(StrEnum):
    """A minimal worker passes the scenarios of the first level, a full one all of them."""

    MINIMAL = "minimal"
    FULL = "full"


@dataclass(frozen=True)
class Scenario:
    """Steps that are played with a new process of the worker; `must` says what the worker must do."""

    name: str
    level: Level
    must: str
    steps: tuple[Step, ...]


_TEXT = 'quotes " and \\ and lines\n, ä, 漢, 🎉'
_NESTED = {"a": [1, 2.5, None, True], "big": 2**60 + 1, "text": _TEXT, "empty": {}}
_LARGE = 3_000_000
_MINIMAL, _FULL = Level.MINIMAL, Level.FULL

SCENARIOS = (
    Scenario(
        "claim",
        _MINIMAL,
        "Register the job, claim each task once, report it running and completed, with attempt and result.",
        (
            Submit("number", {"value": 5}),
            Submit("text", {"value": _TEXT}),
            Submit("nothing"),
            Ends("number", result=5),
            Ends("text", result=_TEXT),
            Ends("nothing", result=None),
            Submit("many", {"value": True}, copies=10),
            *(Ends(f"many-{number}", result=True, within=30) for number in range(1, 11)),
        ),
    ),
    Scenario(
        "failure",
        _MINIMAL,
        "Report a task that fails as failed, with its error, and serve the next one.",
        (
            Submit("broken", {"error": "it is broken"}, {"max_attempts": 1}),
            Ends("broken", "failed", error="it is broken"),
            Submit("next", {"value": 1}),
            Ends("next", result=1),
        ),
    ),
    Scenario(
        "retry",
        _MINIMAL,
        "Report each attempt with its own number; a failure that the job calls final has `retry` false.",
        (
            Submit("broken", {"error": "again"}, {"max_attempts": 2}),
            Waits("broken"),
            Advance(11),
            Ends("broken", "failed", error="again", attempts=2),
            Submit("final", {"error": "never again", "final": True}),
            Ends("final", "failed", error="never again", attempts=1),
        ),
    ),
    Scenario(
        "heartbeat",
        _MINIMAL,
        "While a task runs, send a heartbeat every `heartbeat_interval_seconds` (here 1) that names it.",
        (
            Submit("long", {"seconds": 4, "value": 1}),
            Starts("long"),
            Ends("long", result=1),
            Heartbeats("long", 2),
        ),
    ),
    Scenario(
        "cancel",
        _MINIMAL,
        "After the verdict `cancel`, stop the task, and serve the next one.",
        (
            Submit("long", {"seconds": 300}),
            Starts("long"),
            Act("long", "cancel"),
            Submit("next", {"value": 2}),
            Ends("next", result=2),
            Ends("long", "cancelled"),
        ),
    ),
    Scenario(
        "lost",
        _MINIMAL,
        "After the verdict `lost`, stop the task without a further report, and serve the next one.",
        (
            Submit("long", {"seconds": 300}),
            Starts("long"),
            Act("long", "fail"),
            Submit("next", {"value": 3}),
            Ends("next", result=3),
            Ends("long", "failed"),
        ),
    ),
    Scenario(
        "fence",
        _MINIMAL,
        "Run a task that it has lost and claimed again as a new attempt, and report that with its number.",
        (
            Submit("task", {"seconds": 3, "value": 4}),
            Starts("task"),
            Act("task", "release"),
            Ends("task", result=4, attempts=2, within=25),
        ),
    ),
    Scenario(
        "removed",
        _MINIMAL,
        "After a 404 `worker-not-found`, register again, and claim as the new worker.",
        (RemoveWorker(), Registers(), Submit("next", {"value": 5}), Ends("next", result=5)),
    ),
    Scenario(
        "removed-while-running",
        _MINIMAL,
        "If the worker is removed while a task runs, stop it, register again, and run its next attempt.",
        (
            Submit("long", {"seconds": 5, "value": 6}),
            Starts("long"),
            RemoveWorker(),
            Registers(),
            Advance(11),
            Ends("long", result=6, attempts=2, within=30),
        ),
    ),
    Scenario(
        "lost-claim-answer",
        _MINIMAL,
        "Repeat a claim whose answer is lost with the same `claim_id`, and so get the same task.",
        (
            Lose("claim", "answer"),
            Submit("task", {"value": 7}),
            Lost(),
            RepeatsClaim(),
            Ends("task", result=7, within=25),
        ),
    ),
    Scenario(
        "lost-report-answer",
        _MINIMAL,
        "Repeat a report whose answer is lost, until the server answers.",
        (
            Lose("completed", "answer", times=2),
            Submit("task", {"value": 8}),
            Lost(),
            Ends("task", result=8),
            Submit("next", {"value": 9}),
            Ends("next", result=9, within=25),
        ),
    ),
    Scenario(
        "lost-report",
        _MINIMAL,
        "Repeat a report that is lost on its way to the server.",
        (
            Lose("completed", "request", times=2),
            Submit("task", {"value": 10}),
            Lost(),
            Ends("task", result=10, within=25),
        ),
    ),
    Scenario(
        "duplicate-reports",
        _MINIMAL,
        "Accept the answer to a report that a proxy has sent twice.",
        (
            Lose("running", "twice"),
            Lose("completed", "twice"),
            Submit("task", {"seconds": 1, "value": 11}),
            Ends("task", result=11),
            Submit("next", {"value": 12}),
            Ends("next", result=12),
        ),
    ),
    Scenario(
        "unavailable",
        _MINIMAL,
        "After a 503, wait for its `Retry-After`, and repeat the request.",
        (
            Lose("any", "unavailable", times=4),
            Lost(),
            Submit("task", {"value": 13}),
            Ends("task", result=13, within=25),
        ),
    ),
    Scenario(
        "newer-server",
        _MINIMAL,
        "Ignore fields of answers that it does not know.",
        (
            Lose("any", "newer", times=1000),
            Submit("task", {"seconds": 2, "value": 14}),
            Ends("task", result=14),
            Submit("next", {"value": 15}),
            Ends("next", result=15),
        ),
    ),
    Scenario(
        "idle",
        _MINIMAL,
        "Without a task, wait on the server with `Prefer: wait=N`, or pause between claims.",
        (Idle(3), Submit("task", {"value": 22}), Ends("task", result=22)),
    ),
    Scenario(
        "drain",
        _MINIMAL,
        "After `drain` of a heartbeat or the reason `draining` of a claim: finish the tasks, claim no more, "
        "remove the worker, and exit with code 0.",
        (
            Submit("long", {"seconds": 3, "value": 16}),
            Starts("long"),
            Drain(),
            Submit("next", {"value": 17}),
            Ends("long", result=16),
            Exits(only_zero=True),
        ),
    ),
    Scenario(
        "drain-idle",
        _MINIMAL,
        "If it is drained without a task, remove the worker and exit with code 0.",
        (Drain(), Exits(only_zero=True)),
    ),
    Scenario(
        "stop",
        _MINIMAL,
        "At SIGTERM, finish the running task or release it, remove the worker, and exit.",
        (Submit("long", {"seconds": 3}), Starts("long"), Terminate(), Exits(), Settles("long")),
    ),
    Scenario(
        "restart",
        _MINIMAL,
        "While the server is away, go on with a task, repeat what fails, and report the end when it is back.",
        (
            Submit("long", {"seconds": 2, "value": 18}),
            Starts("long"),
            KillServer(),
            StartServer(after=3),
            Ends("long", result=18, within=40),
            Submit("next", {"value": 19}),
            Ends("next", result=19, within=40),
        ),
    ),
    Scenario(
        "restart-idle",
        _MINIMAL,
        "If the server is killed while it waits for a task, claim again when the server is back.",
        (
            KillServer(),
            StartServer(after=2),
            Submit("task", {"value": 20}),
            Ends("task", result=20, within=40),
        ),
    ),
    Scenario(
        "page-of-a-proxy",
        _FULL,
        "Take an answer that is no JSON of the server for a lost one, and repeat the request.",
        (
            Submit("task", {"seconds": 1, "value": 21}),
            Starts("task"),
            Lose("any", "page", times=2),
            Lost(),
            Ends("task", result=21, within=25),
        ),
    ),
    Scenario(
        "json-result",
        _FULL,
        "Return any JSON unchanged: nested, with integers beyond 2^53, and any character.",
        (Submit("nested", {"value": _NESTED}), Ends("nested", result=_NESTED)),
    ),
    Scenario(
        "large-result",
        _FULL,
        "Upload a result of 3 MB, with its attempt, and then report completion without a result.",
        (Submit("large", {"size": _LARGE}), Ends("large", within=40), StoredBytes("large", _LARGE)),
    ),
    Scenario(
        "lost-upload-answer",
        _FULL,
        "Repeat an upload whose answer is lost, before it reports completion.",
        (
            Lose("upload", "answer"),
            Submit("large", {"size": _LARGE}),
            Lost(within=30),
            Ends("large", within=40),
            StoredBytes("large", _LARGE),
        ),
    ),
    Scenario(
        "progress",
        _FULL,
        "Report the progress of a task.",
        (Submit("task", {"steps": 3}), Ends("task"), Shows("task", current=3)),
    ),
    Scenario(
        "log",
        _FULL,
        "Report lines of the log, each with its time, consecutively numbered from 1.",
        (Submit("task", {"log": "a line, 行"}), Ends("task"), Shows("task", line="a line, 行")),
    ),
)
