"""Operations of webhooks and their deliveries."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path, Query, Response

from zndraw_joblib.server.admin import rules_lists
from zndraw_joblib.server.http.access import check_room_writer
from zndraw_joblib.server.http.requests import Omissible
from zndraw_joblib.server.http.routing import CursorPaging, Paging, json_response, serves
from zndraw_joblib.server.process.ports import Identity, RequestKey
from zndraw_joblib.server.queue import rules_audit, rules_webhooks
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, Answers, answers_of, once
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.bodies import Name
from zndraw_joblib.wire.webhooks import Delivery, WebhookRequest, WebhookResponse

_PUT: Answers[tuple[WebhookResponse, bool]] = answers_of(tuple[WebhookResponse, bool])
_DELIVERY: Answers[Any] = answers_of(Delivery)
_WHAT = "webhooks"
DeliveryNumber = Annotated[int, Path(ge=1, lt=2**63)]


@serves(
    ops.PUT_WEBHOOK, responses={200: {"model": WebhookResponse, "description": "The webhook was replaced"}}
)
async def put_webhook(
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    webhook: Name,
    *,
    body: WebhookRequest,
    key: RequestKey | None,
) -> Response:
    """Create or replace a webhook: it gets the events of all tasks of the room that happen from then on.

    No answer has a secret. Only superusers may do so in reserved rooms.
    """
    check_room_writer(caller, room_id, _WHAT)
    item = await checked_webhook(runtime, caller, room_id, webhook, body)
    answer, is_new = await runtime.write(once(key, _PUT, written(item)), item=item)
    return json_response(answer, 201 if is_new else 200)


async def checked_webhook(
    runtime: Runtime, caller: Identity, room_id: str, name: str, body: WebhookRequest
) -> rules_webhooks.NewWebhook:
    """Return a webhook with the limits that it must not exceed. Raises the problem of its URL."""
    if (refusal := rules_webhooks.refusal_of(body.url, runtime.settings)) is not None:
        raise refusal
    await runtime.stored.webhooks.prepare(caller.id)
    add = partial(runtime.stored.webhooks.check, caller.id)
    return rules_webhooks.NewWebhook(caller, room_id, name, body, runtime.settings, add)


def written(item: rules_webhooks.NewWebhook) -> Callable[..., Awaitable[tuple[WebhookResponse, bool]]]:
    """Return the function that writes a webhook and records that in the audit trail."""
    # Without the URL, which may have a token.
    detail = {"events": item.request.events, "has_new_secret": item.request.secret is not None}
    return rules_audit.recorded(
        rules_webhooks.put, item.caller, "webhook.put", item.name, item.room_id, detail
    )


@serves(ops.LIST_WEBHOOKS)
async def list_webhooks(runtime: Runtime, caller: Identity, room_id: str, page: Paging) -> Response:
    """List the webhooks of a room, by name."""
    check_room_writer(caller, room_id, _WHAT)
    return json_response(await runtime.database.read(rules_webhooks.page, room_id, page))


@serves(ops.GET_WEBHOOK)
async def get_webhook(runtime: Runtime, caller: Identity, room_id: str, webhook: Name) -> Response:
    """Return a webhook, without its secret."""
    check_room_writer(caller, room_id, _WHAT)
    return json_response(await runtime.database.read(rules_webhooks.get, room_id, webhook))


@serves(ops.TEST_WEBHOOK)
async def test_webhook(
    runtime: Runtime, caller: Identity, room_id: str, webhook: Name, key: RequestKey | None
) -> Response:
    """Send a `webhook.test` event, at once also while deliveries fail; read the delivery for the outcome."""
    check_room_writer(caller, room_id, _WHAT)
    work = rules_audit.recorded(rules_webhooks.test, caller, "webhook.test", webhook, room_id)
    return json_response(await runtime.write(once(key, _DELIVERY, work), room_id, webhook), 202)


@serves(ops.DELETE_WEBHOOK)
async def delete_webhook(
    runtime: Runtime, caller: Identity, room_id: str, webhook: Name, key: RequestKey | None
) -> Response:
    """Delete a webhook. What waits for it is not sent; its deliveries stay in the list."""
    check_room_writer(caller, room_id, _WHAT)
    work = rules_audit.recorded(rules_webhooks.delete, caller, "webhook.delete", webhook, room_id)
    await runtime.write(once(key, NOTHING, work), room_id, webhook, runtime.settings)
    return Response(status_code=204)


@serves(ops.LIST_DELIVERIES)
async def list_deliveries(  # noqa: PLR0913 - one parameter each
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    page: CursorPaging,
    *,
    webhook: Annotated[Omissible[Name], Query(description="The name of a webhook")] = None,
    task: Annotated[Omissible[UUID], Query(description="The id of a task")] = None,
    state: Annotated[Omissible[Literal["waiting", "delivered", "failed"]], Query()] = None,
) -> Response:
    """List the deliveries to the webhooks of a room and of its tasks, newest first, of 30 days."""
    check_room_writer(caller, room_id, _WHAT)
    delivery_filter = rules_lists.DeliveryFilter(webhook, task, state)
    return json_response(await runtime.database.read(rules_lists.deliveries, room_id, delivery_filter, page))


@serves(ops.REPEAT_DELIVERY)
async def repeat_delivery(
    runtime: Runtime, caller: Identity, room_id: str, delivery: DeliveryNumber, key: RequestKey | None
) -> Response:
    """Send the event of a delivery again, with the same `webhook-id`. Return the new delivery."""
    check_room_writer(caller, room_id, _WHAT)
    work = rules_audit.recorded(rules_webhooks.repeat, caller, "webhook.repeat", str(delivery), room_id)
    return json_response(await runtime.write(once(key, _DELIVERY, work), room_id, delivery), 202)
