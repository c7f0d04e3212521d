"""The command token worker: a short-lived token of workers, which a server issues."""

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import UsageError, print_json
from zndraw_joblib.client.calls import validated
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.requirements import parsed_label
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest


def issue(  # noqa: PLR0913 - each is an option
    jobs: str,
    rooms: str,
    seconds: float,
    max_tasks: int | None,
    labels: list[str] | None,
    url: str,
    *,
    as_json: bool,
) -> None:
    """Print a new token, or with `as_json` all of the response."""
    try:
        fields = {
            "jobs": _listed(jobs),
            "rooms": _listed(rooms),
            "max_tasks": max_tasks,
            "expires_in_seconds": seconds,
            "labels": dict(map(parsed_label, labels)) if labels else None,
        }
        body = validated(WorkerTokenRequest, fields)
    except ValueError as error:
        raise UsageError(str(error)) from error
    with open_client(url) as client:
        issued = client.read(ops.CREATE_WORKER_TOKEN, "the token", body)
    if as_json:
        print_json(issued)
    else:
        typer.echo(issued.token)


def _listed(text: str) -> list[str]:
    return [value.strip() for value in text.split(",")]
