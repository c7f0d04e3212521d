"""Webhooks: which events go to whom, when a delivery is tried again, and when it is given up.

Each webhook is a queue of its own: its deliveries are sent in their order, one at a time, by the server that
has its lease. While an attempt fails the later ones wait too, and those of other webhooks do not.
"""

import hashlib
import heapq
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.server.db import outbox
from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.db.outbox import EVENTS, NewDelivery
from zndraw_joblib.server.process.addresses import EndpointRefused, endpoint_of
from zndraw_joblib.server.process.ports import WEBHOOKS_KEY, Identity, Page
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_answers, rules_audit, sql_streams, sql_webhooks
from zndraw_joblib.server.queue.sql_webhooks import DeliveryRecord, WebhookRecord
from zndraw_joblib.wire.messages import PaginatedResponse
from zndraw_joblib.wire.problems import Conflict, DeliveryNotFound, InvalidRequest, WebhookNotFound
from zndraw_joblib.wire.webhooks import Delivery, TaskWebhook, WebhookEvent, WebhookRequest, WebhookResponse

GIVE_UP_AFTER = timedelta(days=3)
# After these pauses, with jitter, for about three days: 5 s, 20 s, 80 s, … 6 h.
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE, _JITTER = 5.0, 4.0, 21_600.0, 0.2
_MAX_PER_TURN = 1000
# The due webhooks that are read before the owners are read apart.
_MAX_CANDIDATES = 200
_EVER = datetime(9999, 1, 1, tzinfo=UTC)
# A target of tasks is kept for a day after its last use, and written at most each hour.
_USED_AGAIN = timedelta(hours=1)
GONE = 410
# Who disables a webhook in the audit trail.
_SERVER = Identity("@server", is_superuser=False)


def refusal_of(url: str, settings: JobLibSettings, *path: str) -> InvalidRequest | None:
    """Return the refusal of a URL that the server sends nothing to; None for another."""
    try:
        endpoint_of(url, settings)
    except EndpointRefused as refusal:
        loc = ["body", *path, "url"]
        error = {"loc": loc, "message": str(refusal), "type": "value_error"}
        return InvalidRequest(f"{'.'.join(loc[1:])}: {refusal}", errors=[error])
    return None


# The webhooks of rooms.


class NewWebhook(NamedTuple):
    """A webhook to create or replace.

    `add_webhook()`, for a new one, raises a problem if the caller may have no further one.
    """

    caller: Identity
    room_id: str
    name: str
    request: WebhookRequest
    settings: JobLibSettings
    add_webhook: Callable[[], None] = lambda: None


async def put(tx: Transaction, item: NewWebhook) -> tuple[WebhookResponse, bool]:
    """Create or replace a webhook. Return it, and whether it is new.

    Raises `Conflict` for a room with too many. It gets the events of all tasks that end from now on.
    """
    request, now = item.request, await tx.now()
    await sql_streams.lock_for_webhooks(tx, item.room_id, item.settings)
    current = await sql_webhooks.get(tx, item.room_id, item.name, lock=True)
    values: dict[str, Any] = {
        **{"room_id": item.room_id, "name": item.name, "owner_id": item.caller.id},
        **{"url": request.url, "events": " ".join(request.events)},
        **_secrets(request, current, now),
    }
    if current is None:
        limit = item.settings.max_webhooks_per_room
        if await sql_webhooks.count(tx, item.room_id) >= limit:
            raise Conflict(
                f"Room {item.room_id!r} has {limit} webhooks, which is the limit (max_webhooks_per_room). "
                "Delete webhooks that are not needed"
            )
        item.add_webhook()
        await sql_webhooks.add_webhook(
            tx, {**values, "webhook_id": uuid4(), "created_at": now, "updated_at": now}
        )
    else:
        await sql_webhooks.replace(tx, current.n, values)
    await _write_events(tx, item.room_id, item.settings)
    tx.wake(WEBHOOKS_KEY)
    return await get(tx, item.room_id, item.name), current is None


def _secrets(request: WebhookRequest, current: WebhookRecord | None, now: datetime) -> dict[str, Any]:
    """Return the secrets of a webhook after it was written."""
    if current is None or current.secret is None:
        return {"secret": request.secret, "previous_secret": None, "previous_until": None}
    if request.secret in {None, current.secret}:
        return {
            "secret": current.secret,
            "previous_secret": current.previous_secret,
            "previous_until": current.previous_until,
        }
    until = now + timedelta(seconds=request.previous_secret_seconds)
    is_kept = until > now
    return {
        "secret": request.secret,
        "previous_secret": current.secret if is_kept else None,
        "previous_until": until if is_kept else None,
    }


async def _write_events(tx: Transaction, room_id: str, settings: JobLibSettings) -> None:
    events = await sql_webhooks.wanted_events(tx, room_id)
    keep = timedelta(seconds=settings.event_retention_seconds)
    await sql_streams.set_webhook_events(tx, room_id, " ".join(sorted(events)) or None, keep)


async def delete(tx: Transaction, room_id: str, name: str, settings: JobLibSettings) -> None:
    """Delete a webhook; what waits for it is not sent. Raises `WebhookNotFound`."""
    await sql_streams.lock_for_webhooks(tx, room_id, settings)
    webhook = await sql_webhooks.get(tx, room_id, name, lock=True)
    if webhook is None:
        raise _not_found(room_id, name)
    await sql_webhooks.disable(tx, webhook.n, "deleted", is_removed=True)
    await _write_events(tx, room_id, settings)


async def get(tx: Transaction, room_id: str, name: str) -> WebhookResponse:
    """Return a webhook. Raises `WebhookNotFound`."""
    webhook = await sql_webhooks.get(tx, room_id, name)
    if webhook is None:
        raise _not_found(room_id, name)
    return (await responses(tx, [webhook]))[0]


async def page(tx: Transaction, room_id: str, part: Page) -> PaginatedResponse[WebhookResponse]:
    """Return one page of a room's webhooks, by name."""
    webhooks, total = await sql_webhooks.page(tx, room_id, part.limit, part.offset)
    items = await responses(tx, webhooks)
    return rules_answers.page_response(PaginatedResponse[WebhookResponse], items, total, part)


def _not_found(room_id: str, name: str) -> WebhookNotFound:
    return WebhookNotFound(f"Room {room_id!r} has no webhook {name!r}")


async def responses(tx: Transaction, webhooks: Sequence[WebhookRecord]) -> list[WebhookResponse]:
    """Return webhooks as responses contain them: without secrets."""
    waiting = await sql_webhooks.waiting(tx, [webhook.n for webhook in webhooks])
    now = await tx.now()
    return [_response(webhook, waiting.get(webhook.n, 0), now) for webhook in webhooks]


def _response(webhook: WebhookRecord, waiting: int, now: datetime) -> WebhookResponse:
    state: Literal["active", "failing", "disabled"] = "failing" if webhook.failures else "active"
    until = webhook.previous_until
    return WebhookResponse.model_construct(
        room_id=webhook.room_id,
        name=webhook.name or "",
        url=webhook.url,
        events=webhook.events.split(),
        is_signed=webhook.secret is not None,
        previous_secret_until=until if until is not None and until > now else None,
        created_by=webhook.owner_id,
        created_at=webhook.created_at,
        updated_at=webhook.updated_at,
        state=state if webhook.disabled_at is None else "disabled",
        disabled_at=webhook.disabled_at,
        disabled_reason=webhook.disabled_reason,
        failures=webhook.failures,
        last_error=webhook.last_error,
        next_attempt_at=webhook.due_at if webhook.failures and webhook.disabled_at is None else None,
        waiting=waiting,
    )


async def test(tx: Transaction, room_id: str, name: str) -> Delivery:
    """Send a `webhook.test` event, without the pause after failures. Raises `WebhookNotFound`."""
    webhook = await _enabled(tx, room_id, name)
    data = {"room_id": room_id, "webhook": name}
    body = outbox.body(WebhookEvent.TEST, data, await tx.now())
    return await _add_at_once(tx, webhook, NewDelivery(webhook.target, WebhookEvent.TEST, body))


async def repeat(tx: Transaction, room_id: str, number: int) -> Delivery:
    """Send the event of a delivery again, with the same `webhook-id`, after those that wait.

    Raises `DeliveryNotFound`, and `Conflict` for one of a webhook that is gone or disabled, or of a task.
    """
    old = await sql_webhooks.delivery(tx, room_id, number)
    if old is None:
        raise DeliveryNotFound(f"Room {room_id!r} has no delivery {number}; they are kept for 30 days")
    webhook = await sql_webhooks.hold_number(tx, old.webhook_n)
    if webhook is None or webhook.disabled_at is not None:
        raise Conflict(f"The webhook of delivery {number} was deleted or disabled: write it again first")
    new = NewDelivery(webhook.target, old.event, old.body, old.task_id, old.message)
    return await _add_at_once(tx, webhook, new)


async def _enabled(tx: Transaction, room_id: str, name: str) -> WebhookRecord:
    webhook = await sql_webhooks.hold(tx, room_id, name)
    if webhook is None:
        raise _not_found(room_id, name)
    if webhook.disabled_at is not None:
        raise Conflict(
            f"Webhook {name!r} of room {room_id!r} is disabled ({webhook.disabled_reason}): "
            "write it again first"
        )
    return webhook


async def _add_at_once(tx: Transaction, webhook: WebhookRecord, new: NewDelivery) -> Delivery:
    await sql_webhooks.add_deliveries(tx, [new])
    await sql_webhooks.set_due(tx, webhook.n)
    tx.wake(WEBHOOKS_KEY)
    added = await sql_webhooks.last_delivery(tx, webhook.n)
    if added is None:
        raise AssertionError("the delivery was added in this transaction")
    return delivery_response(added)


def delivery_response(row: DeliveryRecord) -> Delivery:
    """Return a delivery as responses contain it: without its body."""
    state: Literal["waiting", "delivered", "failed"] = "waiting"
    if row.ended_at is not None:
        state = "delivered" if row.delivered else "failed"
    return Delivery.model_construct(
        id=row.seq,
        message_id=message_id(row),
        room_id=row.room_id,
        webhook=row.webhook,
        event=row.event,
        task_id=row.task_id,
        created_at=row.created_at,
        state=state,
        attempts=row.attempts,
        attempted_at=row.attempted_at,
        ended_at=row.ended_at,
        status_code=row.status_code,
        error=row.error,
    )


def message_id(row: DeliveryRecord) -> str:
    """Return the header `webhook-id` of a delivery."""
    return f"msg_{row.message.hex}"


# The webhooks of tasks, and of groups.


def target_id(caller: Identity, room_id: str, webhook: TaskWebhook) -> UUID:
    """Return the digest by which tasks share the queue of a target."""
    parts = (caller.id, room_id, webhook.url, webhook.secret or "", " ".join(sorted(webhook.events)))
    return UUID(bytes=hashlib.sha256("\0".join(parts).encode()).digest()[:16])


async def attach(tx: Transaction, tasks: Mapping[UUID, tuple[Identity, str, TaskWebhook]]) -> None:
    """Send the ends of new tasks to the webhooks of their submits; each has its submitter and room."""
    if not tasks:
        return
    now = await tx.now()
    ids: dict[UUID, list[UUID]] = {}
    values: dict[UUID, dict[str, Any]] = {}
    for task_id, (caller, room_id, webhook) in tasks.items():
        target = target_id(caller, room_id, webhook)
        ids.setdefault(target, []).append(task_id)
        values[target] = {
            **{"webhook_id": target, "room_id": room_id, "name": None, "owner_id": caller.id},
            **{"url": webhook.url, "events": " ".join(webhook.events), "secret": webhook.secret},
            **dict.fromkeys(("created_at", "updated_at", "used_at"), now),
        }
    numbers = await sql_webhooks.targets_of_tasks(tx, values, now - _USED_AGAIN)
    for target, n in sorted(numbers.items(), key=lambda pair: pair[1]):
        await sql_webhooks.link(tx, n, ids[target])


def tasks_ended(tx: Transaction, ended: Mapping[int, TaskEnd]) -> None:
    """Write the ends of tasks, by their `seq`, for the webhooks of their submits, before the commit."""
    tx.before_commit(partial(_add_ends, tx, ended))


async def _add_ends(tx: Transaction, ended: Mapping[int, TaskEnd]) -> None:
    found = await sql_webhooks.of_tasks(tx, sorted(ended))
    changes = [(target, task_id, EVENTS[ended[target.key].status]) for target, task_id in found]
    now = await tx.now()
    if await outbox.add_task_events(tx.execute, changes, now, is_sqlite=tx.is_sqlite):
        tx.wake(WEBHOOKS_KEY)


def group_ended(tx: Transaction, room_id: str, facts: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    """Write the end of a group for the webhooks of its room. `facts` returns what their receivers get."""
    tx.before_commit(partial(_add_group, tx, room_id, facts))


async def _add_group(tx: Transaction, room_id: str, facts: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    event = WebhookEvent.GROUP_ENDED
    targets = await outbox.targets_of_rooms(tx.execute, [room_id])
    if targets := [target for target in targets if event in target.events.split()]:
        text = outbox.body(event, await facts(), await tx.now())
        await sql_webhooks.add_deliveries(tx, [NewDelivery(target, event, text) for target in targets])


# Deliver.


class Attempt(NamedTuple):
    """A webhook of which this server has the lease, and its next delivery; None if nothing waits."""

    webhook: WebhookRecord
    delivery: DeliveryRecord | None
    at: datetime


# How the error of an attempt begins whose address the server does not connect to.
REFUSED = "refused: "


class Outcome(NamedTuple):
    """What became of an attempt: the status of the answer, or why there is none."""

    status_code: int | None
    error: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver has accepted the delivery."""
        return self.status_code is not None and 200 <= self.status_code < 300 and self.error is None

    @property
    def kind(self) -> Literal["delivered", "rejected", "refused", "unreachable"]:
        """The outcome in one word: the receiver accepted or rejected it, or no request was answered."""
        if self.status_code is not None:
            return "delivered" if self.is_success else "rejected"
        return "refused" if (self.error or "").startswith(REFUSED) else "unreachable"

    @property
    def text(self) -> str | None:
        """Why the attempt failed."""
        return self.error or (None if self.is_success else f"the receiver answered {self.status_code}")


class Due(NamedTuple):
    """Webhooks to deliver to now, and in how many seconds the next one is due; None without one."""

    attempts: list[Attempt]
    seconds: float | None


class Slots(NamedTuple):
    """The free slots of a server, how many of them for failing webhooks, and those in use, by owner.

    One owner has at most `share` of all, and at most `share_of_failing` of those for failing webhooks.
    """

    free: int
    free_for_failing: int
    share: int
    share_of_failing: int
    used: Mapping[str, int]
    used_by_failing: Mapping[str, int]


async def take(tx: Transaction, slots: Slots, lease_seconds: float) -> Due:
    """Lease due webhooks, those first whose last attempt did not fail; and a limited number of others.

    Owners take turns: the next slot is for the one that uses the fewest.
    """
    now = await tx.now()
    numbers = await _choose(tx, slots.free, slots.share, slots.used, is_failing=False)
    if (free := min(slots.free - len(numbers), slots.free_for_failing)) > 0:
        numbers += await _choose(tx, free, slots.share_of_failing, slots.used_by_failing, is_failing=True)
    webhooks = []
    if numbers:
        webhooks = await sql_webhooks.take(tx, numbers, now + timedelta(seconds=lease_seconds), uuid4())
    attempts = [Attempt(webhook, await sql_webhooks.head(tx, webhook.n), now) for webhook in webhooks]
    at = await sql_webhooks.first_due(tx, now)
    if len(webhooks) < len(numbers):
        at = now  # another transaction has locked some
    return Due(attempts, None if at is None else (at - now).total_seconds())


async def _choose(
    tx: Transaction, count: int, share: int, used: Mapping[str, int], *, is_failing: bool
) -> list[int]:
    """Return the numbers of due webhooks for the free slots."""
    candidates = await sql_webhooks.due(tx, _MAX_CANDIDATES, is_failing=is_failing)
    if len(candidates) == _MAX_CANDIDATES:
        # One owner may have all of these: those of the others are behind them.
        owners = await sql_webhooks.due_owners(tx, is_failing=is_failing)
        owners.sort(key=lambda owner: used.get(owner, 0))
        candidates = [
            (n, owner)
            for owner in owners[:count]
            for n in await sql_webhooks.due_of_owner(tx, owner, count, is_failing=is_failing)
        ]
    return fair_choice(candidates, count, share, used)


def fair_choice(
    candidates: Sequence[tuple[int, str]], count: int, share: int, used: Mapping[str, int]
) -> list[int]:
    """Return up to `count` numbers of candidates, next that of the owner that uses the fewest slots.

    An owner gets up to `share`, with those in use. Numbers of one owner stay in their order.
    """
    numbers: dict[str, list[int]] = {}
    for n, owner in reversed(candidates):
        numbers.setdefault(owner, []).append(n)
    position = {n: index for index, (n, _) in enumerate(candidates)}
    heap = [(used.get(owner, 0), position[own[-1]], owner) for owner, own in numbers.items()]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < count:
        number, _, owner = heapq.heappop(heap)
        if number >= share:
            break
        own = numbers[owner]
        chosen.append(own.pop())
        if own:
            heapq.heappush(heap, (number + 1, position[own[-1]], owner))
    return chosen


async def record(
    tx: Transaction,
    attempt: Attempt,
    outcome: Outcome | None,
    settings: JobLibSettings,
    *,
    lease_seconds: float,
) -> Attempt | None:
    """Record an attempt, None if nothing waited. Return the next one, None if there is none now.

    A delivery that the receiver accepted has ended, also if the lease went to another server meanwhile.
    """
    if outcome is not None and outcome.status_code == GONE and attempt.webhook.name is not None:
        await sql_streams.lock_for_webhooks(tx, attempt.webhook.room_id, settings)
    webhook = await sql_webhooks.lock_lease(tx, attempt.webhook.n, attempt.webhook.lease or uuid4())
    now = await tx.now()
    if outcome is not None and attempt.delivery is not None and (webhook is not None or outcome.is_success):
        is_old = attempt.delivery.created_at < now - GIVE_UP_AFTER
        await sql_webhooks.record_attempt(
            tx,
            attempt.delivery.seq,
            delivered=outcome.is_success,
            is_over=outcome.is_success or is_old or outcome.status_code == GONE,
            status_code=outcome.status_code,
            error=outcome.text,
        )
    if webhook is None:
        return None
    if webhook.disabled_at is not None:
        await _end_disabled(tx, webhook)
        return None
    if outcome is None or outcome.is_success:
        return await _next(tx, webhook, lease_seconds)
    if outcome.status_code == GONE:
        reason = f"the receiver answered {GONE} (gone)"
        await sql_webhooks.disable(tx, webhook.n, reason)
        if webhook.name is not None:
            await _write_events(tx, webhook.room_id, settings)
            detail = {"reason": reason}
            await rules_audit.record(tx, _SERVER, "webhook.disable", webhook.name, webhook.room_id, detail)
        await _end_disabled(tx, webhook._replace(disabled_reason=reason))
        return None
    await _failed(tx, webhook, outcome, settings)
    return None


async def _next(tx: Transaction, webhook: WebhookRecord, lease_seconds: float) -> Attempt | None:
    """Return the next delivery and extend the lease; end it if nothing waits."""
    now = await tx.now()
    following = await sql_webhooks.head(tx, webhook.n)
    is_alone = following is None and await sql_webhooks.lock_alone(tx, webhook.n)
    if is_alone:
        # What was committed before the lock is seen only by a later statement.
        following = await sql_webhooks.head(tx, webhook.n)
    if following is not None:
        until = now + timedelta(seconds=lease_seconds)
        await sql_webhooks.set_state(tx, webhook, until, lease=webhook.lease)
        return Attempt(webhook._replace(due_at=until, failures=0), following, now)
    # A transaction that is adding a delivery found the webhook due, so it has to stay so.
    await sql_webhooks.set_state(tx, webhook, None if is_alone else now)
    return None


async def _failed(
    tx: Transaction, webhook: WebhookRecord, outcome: Outcome, settings: JobLibSettings
) -> None:
    now, failures = await tx.now(), webhook.failures + 1
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * _GROWTH ** min(failures - 1, 20))
    pause *= random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - jitter
    error = f"given up after {GIVE_UP_AFTER.days} days: {outcome.text}"
    ended = await sql_webhooks.end_waiting(tx, webhook.n, now - GIVE_UP_AFTER, error, _MAX_PER_TURN)
    most = settings.max_waiting_deliveries
    if (await sql_webhooks.waiting(tx, [webhook.n], most + 1)).get(webhook.n, 0) > most:
        # The oldest are lost, so that a dead receiver does not fill the database.
        error = f"more than {most} deliveries waited (max_waiting_deliveries): {outcome.text}"
        ended = await sql_webhooks.end_waiting(tx, webhook.n, _EVER, error, _MAX_PER_TURN)
    due_at = now if ended == _MAX_PER_TURN else now + timedelta(seconds=pause)
    await sql_webhooks.set_state(tx, webhook, due_at, failures=failures, error=outcome.text)


async def _end_disabled(tx: Transaction, webhook: WebhookRecord) -> None:
    """End some of the deliveries that wait for a disabled webhook."""
    now = await tx.now()
    error = f"the webhook is disabled: {webhook.disabled_reason}"
    ended = await sql_webhooks.end_waiting(tx, webhook.n, _EVER, error, _MAX_PER_TURN)
    is_last = ended < _MAX_PER_TURN and await sql_webhooks.lock_alone(tx, webhook.n)
    await sql_webhooks.set_state(
        tx, webhook, None if is_last else now, failures=webhook.failures, error=webhook.last_error
    )


async def give_way(tx: Transaction, attempt: Attempt) -> None:
    """End the lease of a webhook that has deliveries, so that others are next."""
    webhook = await sql_webhooks.lock_lease(tx, attempt.webhook.n, attempt.webhook.lease or uuid4())
    if webhook is not None:
        await sql_webhooks.set_state(
            tx, webhook, await tx.now(), failures=webhook.failures, error=webhook.last_error
        )
