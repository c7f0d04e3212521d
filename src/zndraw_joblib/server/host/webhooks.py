"""The methods of `JobLib` for webhooks and their deliveries."""

from collections.abc import Iterable
from typing import Any, Literal
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.server.admin import rules_lists
from zndraw_joblib.server.admin.rules_lists import DeliveryFilter
from zndraw_joblib.server.host.operators import OperatorApi, identity_of
from zndraw_joblib.server.http.webhooks import checked_webhook, written
from zndraw_joblib.server.process.ports import CursorPage, Page
from zndraw_joblib.server.queue import rules_audit, rules_webhooks
from zndraw_joblib.server.runtime.problem_responses import invalid_part
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.names import is_name, validate_room_id
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.webhooks import Delivery, WebhookRequest, WebhookResponse

# The longest part of a list.
_MAX_PART = 200


class WebhookApi(OperatorApi):
    """What a host's code calls for webhooks. `identity` and `session` are as in `HostApi`."""

    async def put_webhook(  # noqa: PLR0913 - one keyword for each field
        self,
        name: str,
        room: str,
        url: str,
        *,
        events: Iterable[str] | None = None,
        secret: str | None = None,
        previous_secret_seconds: float | None = None,
        identity: Any = None,
        session: Any = None,
    ) -> WebhookResponse:
        """Create or replace a webhook of a room: `put_webhook("ci", "lab", "https://ci.example.org/hook")`.

        The fields are those of `WebhookRequest`. Raises `InvalidRequest`, also for a URL that the settings
        do not allow, and `Conflict` for a room with too many. The identity is in the audit trail.
        """
        caller, room_id = identity_of(identity), validate_room_id(room)
        if not is_name(name):
            raise InvalidRequest(f"name: {name!r:.100} may have letters, digits, '_', '-' and '.', up to 128")
        fields: dict[str, Any] = {"url": url, "events": None if events is None else list(events)}
        fields |= {"secret": secret, "previous_secret_seconds": previous_secret_seconds}
        try:
            body = WebhookRequest.model_validate({k: v for k, v in fields.items() if v is not None})
        except ValidationError as error:
            raise invalid_part(error) from error
        item = await checked_webhook(self.runtime, caller, room_id, name, body)
        webhook, _ = await self._change(session, written(item), item=item)
        return webhook

    async def list_webhooks(self, room: str, *, session: Any = None) -> list[WebhookResponse]:
        """Return the webhooks of a room, by name."""
        items: list[WebhookResponse] = []
        while True:
            part = Page(MAX_PAGE, len(items))
            page = await self._read(session, rules_webhooks.page, validate_room_id(room), part)
            items += page.items
            if not page.items or len(items) >= page.total:
                return items

    async def get_webhook(self, name: str, room: str, *, session: Any = None) -> WebhookResponse:
        """Return a webhook, without its secret. Raises `WebhookNotFound`."""
        return await self._read(session, rules_webhooks.get, validate_room_id(room), name)

    async def test_webhook(
        self, name: str, room: str, *, identity: Any = None, session: Any = None
    ) -> Delivery:
        """Send a `webhook.test` event, and return its delivery. Raises `WebhookNotFound` and `Conflict`."""
        room_id = validate_room_id(room)
        work = rules_audit.recorded(rules_webhooks.test, identity_of(identity), "webhook.test", name, room_id)
        return await self._change(session, work, room_id, name)

    async def delete_webhook(
        self, name: str, room: str, *, identity: Any = None, session: Any = None
    ) -> None:
        """Delete a webhook; what waits for it is not sent. Raises `WebhookNotFound`."""
        room_id = validate_room_id(room)
        work = rules_audit.recorded(
            rules_webhooks.delete, identity_of(identity), "webhook.delete", name, room_id
        )
        await self._change(session, work, room_id, name, self.runtime.settings)

    async def list_deliveries(
        self,
        room: str,
        webhook: str | None = None,
        *,
        task: UUID | str | None = None,
        state: Literal["waiting", "delivered", "failed"] | None = None,
        limit: int = 100,
        session: Any = None,
    ) -> list[Delivery]:
        """Return the newest deliveries of a room, at most `limit`: of a webhook, a task, or in a `state`."""
        task_id = UUID(task) if isinstance(task, str) else task
        delivery_filter, room_id = DeliveryFilter(webhook, task_id, state), validate_room_id(room)
        items: list[Delivery] = []
        cursor: str | None = None
        while len(items) < limit:
            part = CursorPage(min(_MAX_PART, limit - len(items)), cursor)
            page = await self._read(session, rules_lists.deliveries, room_id, delivery_filter, part)
            items += page.items
            if (cursor := page.next) is None:
                break
        return items

    async def repeat_delivery(
        self, delivery: int, room: str, *, identity: Any = None, session: Any = None
    ) -> Delivery:
        """Send the event of a delivery again, and return the new one. Raises `DeliveryNotFound`."""
        room_id = validate_room_id(room)
        work = rules_audit.recorded(
            rules_webhooks.repeat, identity_of(identity), "webhook.repeat", str(delivery), room_id
        )
        return await self._change(session, work, room_id, delivery)
