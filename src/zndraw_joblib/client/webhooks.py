"""The webhooks of a queue, and the deliveries to them.

Made from `client.async_webhooks` by `make generate`; do not edit.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import call_reading, check_empty, validated
from zndraw_joblib.client.flows import read, send_once
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.submits import Submits
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.names import DEFAULT_ROOM, is_name
from zndraw_joblib.wire.webhooks import Delivery, WebhookRequest, WebhookResponse

# The longest part of a list that a server returns.
_MAX_PART = 200


class Webhooks:
    """The webhooks of rooms; `room` is by default that of the queue."""

    def __init__(self, rest: TaskRest, rule: RetryRule, submits: Submits) -> None:
        self._rest, self._rule = rest, rule
        self._room = submits.room or DEFAULT_ROOM

    def put(
        self,
        name: str,
        url: str,
        *,
        events: Iterable[str] | None = None,
        secret: str | None = None,
        previous_secret_seconds: float | None = None,
        room: str | None = None,
    ) -> WebhookResponse:
        """Create or replace a webhook: `put("ci", "https://ci.example.org/hook", events=["task.failed"])`.

        Without `events` it gets all ends. Without `secret` it keeps its own; a new one is unsigned then. See
        `new_webhook_secret`. Raises ValueError for invalid fields.
        """
        if not is_name(name):
            raise ValueError(f"name: {name!r:.100} may have letters, digits, '_', '-' and '.', up to 128")
        fields: dict[str, Any] = {"url": url, "events": None if events is None else list(events)}
        fields |= {"secret": secret, "previous_secret_seconds": previous_secret_seconds}
        present = {field: value for field, value in fields.items() if value is not None}
        body, room_id = validated(WebhookRequest, present), room or self._room

        def make(key: str) -> calls.Call[WebhookResponse]:
            return calls.call(ops.PUT_WEBHOOK, body, key=key, room_id=room_id, webhook=name)

        return self._rest.run(send_once(f"Writing webhook {name}", make, None, self._rule))

    def all(self, room: str | None = None) -> list[WebhookResponse]:
        """Return the webhooks of a room, by name."""
        webhooks: list[WebhookResponse] = []
        while True:
            query = {"limit": MAX_PAGE, "offset": len(webhooks)}
            call = calls.call(ops.LIST_WEBHOOKS, query=query, room_id=room or self._room)
            page = self._rest.run(read(call, "Listing webhooks", self._rule))
            webhooks += page.items
            if not page.items or len(webhooks) >= page.total:
                return webhooks

    def get(self, name: str, *, room: str | None = None) -> WebhookResponse:
        """Return a webhook, without its secret. Raises `WebhookNotFound`."""
        call = calls.call(ops.GET_WEBHOOK, room_id=room or self._room, webhook=name)
        return self._rest.run(read(call, f"Reading webhook {name}", self._rule))

    def test(self, name: str, *, room: str | None = None) -> Delivery:
        """Send a `webhook.test` event, and return its delivery, which waits. Raises `WebhookNotFound`."""
        room_id = room or self._room

        def make(key: str) -> calls.Call[Delivery]:
            return calls.call(ops.TEST_WEBHOOK, key=key, room_id=room_id, webhook=name)

        return self._rest.run(send_once(f"Testing webhook {name}", make, None, self._rule))

    def delete(self, name: str, *, room: str | None = None) -> None:
        """Delete a webhook; what waits for it is not sent. Raises `WebhookNotFound`."""
        room_id = room or self._room

        def make(key: str) -> calls.Call[None]:
            return call_reading(ops.DELETE_WEBHOOK, check_empty, key=key, room_id=room_id, webhook=name)

        self._rest.run(send_once(f"Deleting webhook {name}", make, None, self._rule))

    def deliveries(
        self,
        name: str | None = None,
        *,
        task: UUID | str | None = None,
        state: str | None = None,
        limit: int = 100,
        room: str | None = None,
    ) -> list[Delivery]:
        """Return the newest deliveries of a room, at most `limit`: of a webhook, of a task, or in a `state`.

        A state is `waiting`, `delivered` or `failed`.
        """
        filters = {"webhook": name, "task": None if task is None else str(task), "state": state}
        query: dict[str, Any] = {field: value for field, value in filters.items() if value is not None}
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            query["limit"] = min(_MAX_PART, limit - len(deliveries))
            call = calls.call(ops.LIST_DELIVERIES, query=query, room_id=room or self._room)
            part = self._rest.run(read(call, "Listing deliveries", self._rule))
            deliveries += part.items
            if part.next is None:
                break
            query["cursor"] = part.next
        return deliveries

    def repeat(self, delivery: int, *, room: str | None = None) -> Delivery:
        """Send the event of a delivery again, and return the new delivery. Raises `DeliveryNotFound`."""
        room_id = room or self._room

        def make(key: str) -> calls.Call[Delivery]:
            return calls.call(ops.REPEAT_DELIVERY, key=key, room_id=room_id, delivery=delivery)

        return self._rest.run(send_once(f"Repeating delivery {delivery}", make, None, self._rule))
