"""Commands for administrators: retry, release, fail, sweeper."""

from typing import Annotated

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import print_fields, print_json, print_note, print_rows
from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.cli.options import AsJson, TaskId, Url
from zndraw_joblib.cli.table import Layout
from zndraw_joblib.cli.task_output import print_task
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.contract.messages import SweeperMode, SweeperPreview, SweeperState

Reason = Annotated[
    str | None, typer.Argument(metavar="REASON", help="The error message that the submitter sees.")
]
Mode = Annotated[
    SweeperMode | None,
    typer.Option(
        "--mode", metavar="MODE", help="enforce, observe (report only) or off (do not look for workers)."
    ),
]
Preview = Annotated[bool, typer.Option("--preview", help="Show what a cycle would change now.")]


def retry(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Queue a failed or cancelled task again."""
    with open_client(url) as client:
        print_task(client.retry(client.find_task(task_id)), as_json=as_json)


def release(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Take a task from its worker and queue it again."""
    with open_client(url) as client:
        print_task(client.release(client.find_task(task_id)), as_json=as_json)


def fail(task_id: TaskId, reason: Reason = None, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """End a task as failed, without a retry."""
    with open_client(url) as client:
        print_task(client.fail(client.find_task(task_id), reason), as_json=as_json)


def sweeper(
    *, mode: Mode = None, preview: Preview = False, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Show the sweeper's state, or change it with --mode."""
    if mode and preview:
        raise UsageError("--mode and --preview cannot be combined: a preview changes nothing. Pass one")
    with open_client(url) as client:
        answer = client.preview() if preview else client.sweeper(mode)
    if as_json:
        print_json(answer)
    elif isinstance(answer, SweeperPreview):
        _print_preview(answer)
    else:
        _print_state(answer)


def _print_state(state: SweeperState) -> None:
    print_fields(state.model_dump(exclude={"cycles"}))
    for cycle in state.cycles[:1]:
        print_fields({"last cycle": cycle.at, **cycle.model_dump(exclude={"at", "mode"})})


def _print_preview(preview: SweeperPreview) -> None:
    print_note(f"{preview.stale} of {preview.scanned} workers sent no heartbeat for too long.")
    removed = [{"what": "worker", "id": id, "before": None, "after": "removed"} for id in preview.workers]
    changed = [{"what": "task", **change.model_dump()} for change in preview.tasks]
    rows = [{"reason": None, "run_at": None, **row} for row in [*removed, *changed]]
    layout = Layout(wide=["reason"], ids=["id"], optional=["run_at"])
    print_rows(rows, ["what", "id", "before", "after", "reason", "run_at"], layout)
