"""The commands for webhooks."""

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import (
    ItemTable,
    UsageError,
    counted,
    print_fields,
    print_json,
    print_note,
    usage_errors,
)
from zndraw_joblib.cli.options import AsJson, Room, Url, refuse_options_before
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.wire.names import DEFAULT_ROOM
from zndraw_joblib.wire.webhooks import Delivery, WebhookResponse, new_webhook_secret


class DeliveryState(StrEnum):
    """The states of deliveries."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name.")]
Target = Annotated[str, typer.Argument(metavar="URL", help="Where the events go: https://…")]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="EVENT", help="Like task.failed; repeat it. Default: all ends."),
]
Secret = Annotated[
    str | None, typer.Option("--secret", metavar="whsec_…", help="It signs each delivery; kept if omitted.")
]
NewSecret = Annotated[bool, typer.Option("--new-secret", help="Make a secret, and print it once.")]
OfWebhook = Annotated[str | None, typer.Option("--webhook", metavar="NAME", help="Those of a webhook.")]
OfTask = Annotated[str | None, typer.Option("--task", metavar="ID", help="Those of a task.")]
State = Annotated[
    DeliveryState | None, typer.Option("--state", metavar="STATE", help="waiting, delivered or failed.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many.")]
Number = Annotated[int, typer.Argument(metavar="ID", min=1, help="The number of a delivery.")]

_WEBHOOKS = ItemTable(
    {
        "name": "name",
        "url": "url",
        "events": lambda webhook: " ".join(webhook.events),
        "state": "state",
        "waiting": "waiting",
        "next": "next_attempt_at",
        "error": "last_error",
    },
    wide=["url", "events", "error"],
    optional=["next", "error"],
)
_DELIVERIES = ItemTable(
    {
        "id": "id",
        "webhook": "webhook",
        "event": "event",
        "task": "task_id",
        "state": "state",
        "attempts": "attempts",
        "created": "created_at",
        "status": "status_code",
        "error": "error",
    },
    wide=["error"],
    optional=["status", "error"],
)

app = typer.Typer(invoke_without_command=True)


@app.callback()
def webhooks(
    context: typer.Context, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """List the webhooks of a room, or change one."""
    if refuse_options_before(context):
        return
    with open_client(url) as client:
        items = client.webhooks.all(room)
    _WEBHOOKS.print(items, caption=f"Room {room} has {counted(len(items), 'webhook')}", as_json=as_json)


@app.command()
def put(  # noqa: PLR0913 - each is an option
    name: Name,
    target: Target,
    *,
    event: Events = None,
    secret: Secret = None,
    new_secret: NewSecret = False,
    room: Room = DEFAULT_ROOM,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create or replace a webhook, and enable it."""
    if secret is not None and new_secret:
        raise UsageError("Give --secret or --new-secret, not both")
    made = new_webhook_secret() if new_secret else None
    with open_client(url) as client, usage_errors():
        webhook = client.webhooks.put(name, target, events=event, secret=secret or made, room=room)
    if as_json and made is not None:
        print_json({**webhook.model_dump(mode="json"), "secret": made})
        return
    _print(webhook, as_json=as_json)
    if made is not None:
        print_note(f"The secret of webhook {name}, which is not shown again: {made}")
    elif not webhook.is_signed:
        print_note(f"Webhook {name} has no secret: its deliveries are not signed. Add --new-secret")


@app.command()
def show(name: Name, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show a webhook, without its secret."""
    with open_client(url) as client, client.near_webhooks(name, room):
        _print(client.webhooks.get(name, room=room), as_json=as_json)


@app.command("test")
def send_test(
    name: Name, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Send a test event to a webhook."""
    with open_client(url) as client, client.near_webhooks(name, room):
        _print_added(client.webhooks.test(name, room=room), room, as_json=as_json)


@app.command()
def delete(name: Name, *, room: Room = DEFAULT_ROOM, url: Url = DEFAULT_URL) -> None:
    """Delete a webhook; what waits for it is not sent."""
    with open_client(url) as client, client.near_webhooks(name, room):
        client.webhooks.delete(name, room=room)
    print_note(f"Webhook {name} of room {room} is deleted. Its deliveries stay in the list.")


@app.command()
def deliveries(  # noqa: PLR0913 - each is an option
    *,
    webhook: OfWebhook = None,
    task: OfTask = None,
    state: State = None,
    limit: Limit = 50,
    room: Room = DEFAULT_ROOM,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List deliveries to webhooks, newest first."""
    with open_client(url) as client:
        items = client.webhooks.deliveries(webhook, task=task, state=state, limit=limit, room=room)
    _DELIVERIES.print(items, as_json=as_json)


@app.command()
def repeat(
    delivery: Number, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Send the event of a delivery again."""
    with open_client(url) as client:
        _print_added(client.webhooks.repeat(delivery, room=room), room, as_json=as_json)


def _print_added(delivery: Delivery, room: str, *, as_json: bool) -> None:
    """Print the number of a new delivery, for scripts, and where its outcome is shown."""
    if as_json:
        print_json(delivery)
        return
    typer.echo(delivery.id)
    command = shlex.join(["zndraw-joblib", "webhooks", "deliveries", "--room", room])
    print_note(f"Delivery {delivery.id} of {delivery.event} is being sent. '{command}' shows the answer.")


def _print(webhook: WebhookResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    fields = webhook.model_dump(exclude_none=True) | {"events": " ".join(webhook.events)}
    print_fields({"name": fields.pop("name"), **fields})
