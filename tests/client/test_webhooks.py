"""Webhooks with `Queue` and `AsyncQueue`."""

import pytest

from client.both import Both
from zndraw_joblib import DeliveryNotFound, WebhookNotFound, new_webhook_secret

# No host has such a name.
URL = "https://hooks.invalid/ci"


async def test_a_webhook_from_its_creation_to_its_deletion(queue: Both, room: str) -> None:
    """It is written, read, listed, tested and deleted in the room of the queue; no answer has the secret."""
    webhooks, secret = Both(queue.webhooks), new_webhook_secret()
    webhook = await webhooks.put("ci", URL, events=["task.failed"], secret=secret)
    assert (webhook.room_id, webhook.url, webhook.events) == (room, URL, ["task.failed"])
    assert webhook.is_signed
    assert secret not in repr(webhook)
    await webhooks.put("other", URL)
    assert [one.name for one in await webhooks.all()] == ["ci", "other"]
    sent = await webhooks.test("ci")
    again = await webhooks.repeat(sent.id)
    assert (again.event, again.message_id) == ("webhook.test", sent.message_id)
    assert [one.id for one in await webhooks.deliveries("ci")] == [again.id, sent.id]
    assert [one.id for one in await webhooks.deliveries(limit=1)] == [again.id]
    assert await webhooks.deliveries("ci", state="delivered") == []
    assert (await webhooks.get("ci")).url == URL
    await webhooks.delete("ci")
    with pytest.raises(WebhookNotFound):
        await webhooks.get("ci")
    with pytest.raises(DeliveryNotFound):
        await webhooks.repeat(10**9)


async def test_wrong_webhooks_raise(queue: Both) -> None:
    """Before a request is sent, with the name of the field."""
    webhooks = Both(queue.webhooks)
    with pytest.raises(ValueError, match="name"):
        await webhooks.put("a b", URL)
    with pytest.raises(ValueError, match="url"):
        await webhooks.put("ci", "hooks.invalid")
    with pytest.raises(ValueError, match="events"):
        await webhooks.put("ci", URL, events=["task.done"])
    with pytest.raises(ValueError, match="secret") as raised:
        await webhooks.put("ci", URL, secret="not-a-secret-of-webhooks")
    assert "not-a-secret" not in str(raised.value)
