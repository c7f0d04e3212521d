"""Webhooks, the leases of servers that deliver to them, and the rows of their outbox."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db import outbox
from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.outbox import NewDelivery, Target
from zndraw_joblib.server.db.statements import BIG_INTEGER, BOOLEAN, INTEGER, one_row, statement
from zndraw_joblib.server.process.ports import WEBHOOKS_KEY

MAX_COUNTED = 10_000


class WebhookRecord(NamedTuple):
    """A webhook's row."""

    n: int
    webhook_id: UUID
    room_id: str
    name: str | None
    owner_id: str
    url: str
    events: str
    secret: str | None
    previous_secret: str | None
    previous_until: datetime | None
    created_at: datetime
    updated_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    last_error: str | None
    due_at: datetime | None
    lease: UUID | None

    @property
    def target(self) -> Target:
        """The webhook as a target of its room's events."""
        return Target(self.n, self.room_id, self.room_id, self.name, self.events, self.due_at)


class DeliveryRecord(NamedTuple):
    """A row of the outbox."""

    seq: int
    webhook_n: int
    room_id: str
    webhook: str | None
    message: UUID
    event: str
    task_id: UUID | None
    body: str
    created_at: datetime
    attempts: int
    attempted_at: datetime | None
    ended_at: datetime | None
    delivered: bool
    status_code: int | None
    error: str | None


COLUMNS = WebhookRecord._fields
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM joblib_webhook"
_OF_NAME = "WHERE room_id = :room_id AND name = :name"
_GET = statement(f"{_SELECT} {_OF_NAME}", *COLUMNS)
_LOCK_NAMED = statement(f"{_SELECT} {_OF_NAME}\nFOR NO KEY UPDATE", *COLUMNS)
_HOLD_NAMED = statement(f"{_SELECT} {_OF_NAME}\nFOR KEY SHARE", *COLUMNS)
_HOLD_NUMBER = statement(f"{_SELECT} WHERE n = :n\nFOR KEY SHARE", *COLUMNS)
# Not while a server has the lease: it looks for the next delivery itself.
_SET_DUE = statement("UPDATE joblib_webhook SET due_at = :now WHERE n = :n AND lease IS NULL")
_NEW = (*COLUMNS[1:7], "secret", "created_at", "updated_at", "used_at")
_ADD = statement(f"INSERT INTO joblib_webhook {one_row(_NEW)} ON CONFLICT DO NOTHING RETURNING n", "n")
_REPLACE = statement(
    """
UPDATE joblib_webhook SET owner_id = :owner_id, url = :url, events = :events, secret = :secret,
    previous_secret = :previous_secret, previous_until = :previous_until, updated_at = :now,
    disabled_at = NULL, disabled_reason = NULL, failures = 0, last_error = NULL,
    due_at = CASE WHEN due_at IS NULL OR lease IS NOT NULL THEN due_at ELSE :now END
WHERE n = :n
"""
)
# Its waiting rows end later, in parts.
_DISABLE = statement(
    """
UPDATE joblib_webhook SET disabled_at = :now, disabled_reason = :disabled_reason,
    due_at = CASE WHEN lease IS NULL THEN :now ELSE due_at END,
    name = CASE WHEN :is_removed THEN NULL ELSE name END, used_at = :now
WHERE n = :n
""",
    is_removed=BOOLEAN,
)
_PAGE = statement(
    f"{_SELECT} WHERE room_id = :room_id AND name IS NOT NULL ORDER BY name LIMIT :limit OFFSET :offset",
    *COLUMNS,
)
_COUNT = statement(
    "SELECT count(*) FROM joblib_webhook WHERE room_id = :room_id AND name IS NOT NULL", "number"
)
_EVENTS = statement(
    """
SELECT events FROM joblib_webhook WHERE room_id = :room_id AND name IS NOT NULL AND disabled_at IS NULL
""",
    "events",
)
_WAITING = statement(
    """
SELECT n, (SELECT count(*) FROM (
    SELECT 1 FROM joblib_outbox WHERE webhook_n = joblib_webhook.n AND ended_at IS NULL LIMIT :most
) AS waiting) AS number
FROM joblib_webhook WHERE n = ANY (:all_n)
""",
    *("n", "number"),
    number=INTEGER,
    most=INTEGER,
)

# The webhooks of tasks.

_HOLD_TARGETS = statement(
    """
SELECT n, webhook_id FROM joblib_webhook
WHERE webhook_id = ANY (:all_webhook_id) AND used_at > :since AND disabled_at IS NULL
ORDER BY n
FOR KEY SHARE
""",
    *("n", "webhook_id"),
)
# One whose receiver answered 410 is enabled: its user has named it again.
_ADD_TARGET = statement(
    f"""
INSERT INTO joblib_webhook {one_row(_NEW)}
ON CONFLICT (webhook_id) DO UPDATE SET used_at = excluded.used_at, disabled_at = NULL,
    disabled_reason = NULL
RETURNING n
""",
    "n",
)
_LINK = statement(
    """
INSERT INTO joblib_task_webhook (task_seq, webhook_n)
SELECT seq, :webhook_n FROM joblib_task WHERE id = ANY (:all_id)
"""
)
_OF_TASKS = statement(
    """
SELECT joblib_webhook.n, joblib_task.seq AS key, joblib_webhook.room_id, joblib_webhook.name,
    joblib_webhook.events, joblib_webhook.due_at, joblib_task.id
FROM joblib_task_webhook JOIN joblib_webhook ON joblib_webhook.n = joblib_task_webhook.webhook_n
    JOIN joblib_task ON joblib_task.seq = joblib_task_webhook.task_seq
WHERE joblib_task_webhook.task_seq = ANY (:all_task_seq) AND joblib_webhook.disabled_at IS NULL
ORDER BY joblib_webhook.n, joblib_task.seq
FOR KEY SHARE OF joblib_webhook
""",
    *(*Target._fields, "id"),
    key=BIG_INTEGER,
)
_UNLINK = statement("DELETE FROM joblib_task_webhook WHERE task_seq = ANY (:all_task_seq)")

# Leases.

# Webhooks whose last attempt failed, and the others, each with indexes of their own.
_CLASSES = {
    is_failing: f"due_at IS NOT NULL AND failures {'> 0' if is_failing else '= 0'}"
    for is_failing in (False, True)
}
_DUE = {
    is_failing: statement(
        f"""
SELECT n, owner_id FROM joblib_webhook WHERE {condition} AND due_at <= :now ORDER BY due_at LIMIT :limit
""",
        *("n", "owner_id"),
    )
    for is_failing, condition in _CLASSES.items()
}
_DUE_OF_OWNER = {
    is_failing: statement(
        f"""
SELECT n FROM joblib_webhook WHERE {condition} AND owner_id = :owner_id AND due_at <= :now
ORDER BY due_at LIMIT :limit
""",
        "n",
    )
    for is_failing, condition in _CLASSES.items()
}
# One step of the index for each owner.
_DUE_OWNERS = {
    is_failing: statement(
        f"""
WITH RECURSIVE owners (owner_id) AS (
    SELECT (SELECT owner_id FROM joblib_webhook WHERE {condition} ORDER BY owner_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT joblib_webhook.owner_id FROM joblib_webhook
        WHERE {condition} AND joblib_webhook.owner_id > owners.owner_id
        ORDER BY joblib_webhook.owner_id LIMIT 1
    )
    FROM owners WHERE owners.owner_id IS NOT NULL
)
SELECT owner_id, (
    SELECT joblib_webhook.due_at FROM joblib_webhook
    WHERE {condition} AND joblib_webhook.owner_id = owners.owner_id
    ORDER BY joblib_webhook.due_at LIMIT 1
) AS due_at
FROM owners WHERE owner_id IS NOT NULL LIMIT :limit
""",
        *("owner_id", "due_at"),
    )
    for is_failing, condition in _CLASSES.items()
}
_LOCK_DUE = statement(
    f"""
{_SELECT} WHERE n = ANY (:all_n) AND due_at <= :now ORDER BY n
FOR NO KEY UPDATE SKIP LOCKED
""",
    *COLUMNS,
)
_TAKE = statement("UPDATE joblib_webhook SET due_at = :due_at, lease = :lease WHERE n = ANY (:all_n)")
# The first that is due, and the first that will be.
_FIRST_DUE = statement(
    " UNION ALL ".join(
        f"SELECT (SELECT min(due_at) FROM joblib_webhook WHERE {condition} AND due_at > :since) AS due_at"
        for condition in _CLASSES.values()
    ),
    "due_at",
    since=UtcDateTime(),
)
# Figures for operators, of a bounded number of rows.
_COUNT_FAILING = statement(
    f"""
SELECT count(*) FROM (
    SELECT 1 FROM joblib_webhook WHERE {_CLASSES[True]} ORDER BY due_at LIMIT :most
) AS failing
""",
    "number",
    most=INTEGER,
)
_COUNT_DISABLED = statement(
    "SELECT count(*) FROM joblib_webhook WHERE disabled_at IS NOT NULL AND name IS NOT NULL", "number"
)
_FAILING = statement(
    f"""
SELECT {", ".join(COLUMNS)} FROM (
    {_SELECT} WHERE {_CLASSES[True]} ORDER BY due_at LIMIT :most
) AS failing
WHERE name IS NOT NULL AND disabled_at IS NULL AND failures >= :failures
ORDER BY failures DESC LIMIT :limit
""",
    *COLUMNS,
    most=INTEGER,
)
_DISABLED = statement(
    f"""
{_SELECT} WHERE disabled_at IS NOT NULL AND name IS NOT NULL ORDER BY disabled_at DESC LIMIT :limit
""",
    *COLUMNS,
)
_LOCK_LEASE = statement(f"{_SELECT} WHERE n = :n AND lease = :lease\nFOR NO KEY UPDATE", *COLUMNS)
# With this lock no transaction is adding rows.
_LOCK_ALONE = statement("SELECT n FROM joblib_webhook WHERE n = :n\nFOR UPDATE SKIP LOCKED", "n")
_RELEASE = statement(
    """
UPDATE joblib_webhook SET due_at = :due_at, lease = :lease, failures = :failures, last_error = :last_error
WHERE n = :n
"""
)
_ROWS = DeliveryRecord._fields
_SELECT_ROWS = f"SELECT {', '.join(_ROWS)} FROM joblib_outbox"
_HEAD = statement(
    f"{_SELECT_ROWS} WHERE webhook_n = :webhook_n AND ended_at IS NULL ORDER BY seq LIMIT 1", *_ROWS
)
_LAST = statement(
    f"{_SELECT_ROWS} WHERE webhook_n = :webhook_n AND ended_at IS NULL ORDER BY seq DESC LIMIT 1", *_ROWS
)
_ATTEMPTED = statement(
    """
UPDATE joblib_outbox SET attempts = attempts + 1, attempted_at = :now, ended_at = :ended_at,
    delivered = :delivered, status_code = :status_code, error = :error
WHERE seq = :seq AND ended_at IS NULL
"""
)
_END_WAITING = statement(
    """
UPDATE joblib_outbox SET ended_at = :now, error = coalesce(error, :error)
WHERE seq IN (
    SELECT seq FROM joblib_outbox
    WHERE webhook_n = :webhook_n AND ended_at IS NULL AND created_at < :before
    ORDER BY seq LIMIT :limit
)
RETURNING seq
""",
    "seq",
    before=UtcDateTime(),
)
# Rows that wait although their webhook is not due: of transactions that took very long. The recursion
# takes one step of the index for each webhook with such rows.
_STUCK = statement(
    """
WITH RECURSIVE waiting (webhook_n) AS (
    SELECT (SELECT webhook_n FROM joblib_outbox WHERE ended_at IS NULL ORDER BY webhook_n LIMIT 1)
    UNION ALL
    SELECT (
        SELECT joblib_outbox.webhook_n FROM joblib_outbox
        WHERE ended_at IS NULL AND joblib_outbox.webhook_n > waiting.webhook_n
        ORDER BY joblib_outbox.webhook_n LIMIT 1
    )
    FROM waiting WHERE waiting.webhook_n IS NOT NULL
)
SELECT webhook_n, (
    SELECT n FROM joblib_webhook WHERE n = waiting.webhook_n AND due_at IS NULL
) AS n
FROM waiting WHERE webhook_n IS NOT NULL
""",
    *("webhook_n", "n"),
)
_SET_STUCK_DUE = statement(
    "UPDATE joblib_webhook SET due_at = :now WHERE n = ANY (:all_n) AND due_at IS NULL RETURNING n", "n"
)

# Deliveries, and what is deleted.

_GET_DELIVERY = statement(f"{_SELECT_ROWS} WHERE room_id = :room_id AND seq = :seq", *_ROWS)
_STATES = {
    "waiting": " AND ended_at IS NULL",
    "delivered": " AND delivered",
    "failed": " AND ended_at IS NOT NULL AND NOT delivered",
}
_FILTERS = {"webhook": " AND webhook = :webhook", "task_id": " AND task_id = :task_id"}
_OLDEST_ROWS = statement(
    """
SELECT seq FROM joblib_outbox WHERE created_at < :before AND ended_at IS NOT NULL
ORDER BY created_at LIMIT :limit
""",
    "seq",
    before=UtcDateTime(),
)
_REMOVE_ROWS = statement("DELETE FROM joblib_outbox WHERE seq = ANY (:all_seq) RETURNING seq", "seq")
_FOLLOWING = statement(
    "SELECT n FROM joblib_webhook WHERE n > :after ORDER BY n LIMIT :limit", "n", after=BIG_INTEGER
)
_LOCK_UNUSED = statement(
    """
SELECT n FROM joblib_webhook
WHERE n = ANY (:all_n) AND name IS NULL AND used_at < :before AND due_at IS NULL
    AND (SELECT task_seq FROM joblib_task_webhook WHERE webhook_n = joblib_webhook.n LIMIT 1) IS NULL
    AND (
        SELECT seq FROM joblib_outbox WHERE webhook_n = joblib_webhook.n AND ended_at IS NULL LIMIT 1
    ) IS NULL
ORDER BY n
FOR UPDATE SKIP LOCKED
""",
    "n",
    before=UtcDateTime(),
)
_REMOVE_TARGETS = statement("DELETE FROM joblib_webhook WHERE n = ANY (:all_n)")


async def get(tx: Transaction, room_id: str, name: str, *, lock: bool = False) -> WebhookRecord | None:
    """Return a webhook of a room, with `lock` locked until the commit."""
    row = (await tx.execute(_LOCK_NAMED if lock else _GET, {"room_id": room_id, "name": name})).first()
    return None if row is None else WebhookRecord(*row)


async def hold(tx: Transaction, room_id: str, name: str) -> WebhookRecord | None:
    """Return a webhook to which the transaction adds deliveries."""
    row = (await tx.execute(_HOLD_NAMED, {"room_id": room_id, "name": name})).first()
    return None if row is None else WebhookRecord(*row)


async def hold_number(tx: Transaction, n: int) -> WebhookRecord | None:
    """Do what `hold` does for a webhook by its number."""
    row = (await tx.execute(_HOLD_NUMBER, {"n": n})).first()
    return None if row is None else WebhookRecord(*row)


async def set_due(tx: Transaction, n: int) -> None:
    """Make a webhook due now that no server delivers to."""
    await tx.execute(_SET_DUE, {"n": n, "now": await tx.now()})


async def add_webhook(tx: Transaction, values: Mapping[str, Any]) -> None:
    """Insert a webhook. The caller has locked the room."""
    await tx.execute(_ADD, {**values, "used_at": values["created_at"]})


async def replace(tx: Transaction, n: int, values: Mapping[str, Any]) -> None:
    """Replace a locked webhook, which is enabled then."""
    await tx.execute(_REPLACE, {**values, "n": n, "now": await tx.now()})


async def disable(tx: Transaction, n: int, reason: str, *, is_removed: bool = False) -> None:
    """Disable a locked webhook, or remove it from its room; a server ends its waiting deliveries."""
    params = {"n": n, "disabled_reason": reason, "is_removed": is_removed, "now": await tx.now()}
    await tx.execute(_DISABLE, params)
    tx.wake(WEBHOOKS_KEY)


async def page(tx: Transaction, room_id: str, limit: int, offset: int) -> tuple[list[WebhookRecord], int]:
    """Return one page of a room's webhooks by name, and the count of all."""
    params = {"room_id": room_id, "limit": limit, "offset": offset}
    rows = (await tx.execute(_PAGE, params)).all()
    return [WebhookRecord(*row) for row in rows], await count(tx, room_id)


async def count(tx: Transaction, room_id: str) -> int:
    """Return how many webhooks a room has."""
    number: int = (await tx.execute(_COUNT, {"room_id": room_id})).scalar_one()
    return number


async def wanted_events(tx: Transaction, room_id: str) -> set[str]:
    """Return the events that the enabled webhooks of a room want."""
    rows = await tx.execute(_EVENTS, {"room_id": room_id})
    return {event for row in rows for event in row.events.split()}


async def waiting(tx: Transaction, numbers: Sequence[int], most: int = MAX_COUNTED) -> dict[int, int]:
    """Return how many deliveries wait for each webhook, up to `most`."""
    if not numbers:
        return {}
    rows = await tx.execute(_WAITING, {"all_n": padded(numbers), "most": most})
    return {n: number for n, number in rows}


async def targets_of_tasks(
    tx: Transaction, values: Mapping[UUID, Mapping[str, Any]], since: Any
) -> dict[UUID, int]:
    """Return the webhooks of tasks by their digests, made if they are new, and held until the commit."""
    params = {"all_webhook_id": padded(sorted(values)), "since": since}
    held = {row.webhook_id: row.n for row in await tx.execute(_HOLD_TARGETS, params)}
    for webhook_id in sorted(values.keys() - held.keys()):
        held[webhook_id] = (await tx.execute(_ADD_TARGET, values[webhook_id])).scalar_one()
    return held


async def link(tx: Transaction, webhook_n: int, task_ids: Sequence[UUID]) -> None:
    """Send the ends of new tasks to a webhook."""
    await tx.execute(_LINK, {"webhook_n": webhook_n, "all_id": padded(task_ids)})


async def of_tasks(tx: Transaction, seqs: Sequence[int]) -> list[tuple[Target, UUID]]:
    """Return the webhooks of tasks, to which the transaction adds deliveries, each with the task's id."""
    rows = await tx.execute(_OF_TASKS, {"all_task_seq": padded(seqs)})
    return [(Target(*target), task_id) for *target, task_id in rows]


async def unlink(tx: Transaction, seqs: Sequence[int]) -> None:
    """Forget the webhooks of tasks that are deleted."""
    await tx.execute(_UNLINK, {"all_task_seq": padded(seqs)})


async def add_deliveries(tx: Transaction, new: Sequence[NewDelivery]) -> None:
    """Add deliveries to webhooks that the transaction holds."""
    if await outbox.add(tx.execute, new, await tx.now(), is_sqlite=tx.is_sqlite):
        tx.wake(WEBHOOKS_KEY)


async def last_delivery(tx: Transaction, webhook_n: int) -> DeliveryRecord | None:
    """Return the delivery of a webhook that was added last."""
    row = (await tx.execute(_LAST, {"webhook_n": webhook_n})).first()
    return None if row is None else DeliveryRecord(*row)


async def due(tx: Transaction, limit: int, *, is_failing: bool) -> list[tuple[int, str]]:
    """Return due webhooks with their owners, those of which the last attempt failed or the others."""
    rows = await tx.execute(_DUE[is_failing], {"now": await tx.now(), "limit": limit})
    return [(n, owner_id) for n, owner_id in rows]


async def due_owners(tx: Transaction, *, is_failing: bool) -> list[str]:
    """Return the owners of due webhooks, the one first that has waited for the longest time."""
    now = await tx.now()
    rows = (await tx.execute(_DUE_OWNERS[is_failing], {"limit": MAX_COUNTED})).all()
    return [row.owner_id for row in sorted(rows, key=lambda row: row.due_at) if row.due_at <= now]


async def due_of_owner(tx: Transaction, owner_id: str, limit: int, *, is_failing: bool) -> list[int]:
    """Return due webhooks of an owner."""
    params = {"owner_id": owner_id, "now": await tx.now(), "limit": limit}
    return list((await tx.execute(_DUE_OF_OWNER[is_failing], params)).scalars())


async def take(tx: Transaction, numbers: Sequence[int], until: datetime, lease: UUID) -> list[WebhookRecord]:
    """Lease those of these webhooks that are still due and that no other transaction has locked."""
    params = {"all_n": padded(numbers), "now": await tx.now()}
    webhooks = [WebhookRecord(*row) for row in await tx.execute(_LOCK_DUE, params)]
    if webhooks:
        numbers = padded([webhook.n for webhook in webhooks])
        await tx.execute(_TAKE, {"all_n": numbers, "due_at": until, "lease": lease})
    return [webhook._replace(lease=lease, due_at=until) for webhook in webhooks]


async def first_due(tx: Transaction, since: datetime) -> datetime | None:
    """Return when the first webhook is due after a time."""
    moments = (await tx.execute(_FIRST_DUE, {"since": since})).scalars()
    return min((moment for moment in moments if moment is not None), default=None)


async def count_failing(tx: Transaction) -> int:
    """Return how many webhooks wait after a failure, up to 10,000."""
    number: int = (await tx.execute(_COUNT_FAILING, {"most": MAX_COUNTED})).scalar_one()
    return number


async def count_disabled(tx: Transaction) -> int:
    """Return how many webhooks of rooms are disabled."""
    number: int = (await tx.execute(_COUNT_DISABLED)).scalar_one()
    return number


async def failing(tx: Transaction, failures: int, limit: int) -> list[WebhookRecord]:
    """Return webhooks of rooms whose last attempts failed this number of times."""
    params = {"failures": failures, "limit": limit, "most": MAX_COUNTED}
    return [WebhookRecord(*row) for row in await tx.execute(_FAILING, params)]


async def disabled(tx: Transaction, limit: int) -> list[WebhookRecord]:
    """Return webhooks of rooms that were disabled last."""
    return [WebhookRecord(*row) for row in await tx.execute(_DISABLED, {"limit": limit})]


async def lock_lease(tx: Transaction, n: int, lease: UUID) -> WebhookRecord | None:
    """Lock a webhook, if the lease has not run out and gone to another server."""
    row = (await tx.execute(_LOCK_LEASE, {"n": n, "lease": lease})).first()
    return None if row is None else WebhookRecord(*row)


async def lock_alone(tx: Transaction, n: int) -> bool:
    """Lock a webhook against transactions that add deliveries. Return whether none is adding some now."""
    return (await tx.execute(_LOCK_ALONE, {"n": n})).first() is not None


async def set_state(
    tx: Transaction,
    webhook: WebhookRecord,
    due_at: datetime | None,
    *,
    lease: UUID | None = None,
    failures: int = 0,
    error: str | None = None,
) -> None:
    """Set when a locked webhook is due, and the state of its breaker."""
    params = {"n": webhook.n, "due_at": due_at, "lease": lease, "failures": failures, "last_error": error}
    await tx.execute(_RELEASE, params)


async def head(tx: Transaction, webhook_n: int) -> DeliveryRecord | None:
    """Return the first waiting delivery of a webhook."""
    row = (await tx.execute(_HEAD, {"webhook_n": webhook_n})).first()
    return None if row is None else DeliveryRecord(*row)


async def record_attempt(
    tx: Transaction, seq: int, *, delivered: bool, is_over: bool, status_code: int | None, error: str | None
) -> None:
    """Record an attempt, unless the delivery has ended already."""
    now = await tx.now()
    params = {"seq": seq, "now": now, "ended_at": now if is_over else None, "delivered": delivered}
    await tx.execute(_ATTEMPTED, {**params, "status_code": status_code, "error": error})


async def end_waiting(tx: Transaction, webhook_n: int, before: datetime, error: str, limit: int) -> int:
    """End the first waiting deliveries that are older than a time. Return how many."""
    params = {"webhook_n": webhook_n, "before": before, "error": error, "limit": limit}
    return len((await tx.execute(_END_WAITING, {**params, "now": await tx.now()})).all())


async def find_stuck(tx: Transaction) -> int:
    """Make webhooks due that have waiting deliveries and are not. Return how many."""
    numbers = [row.n for row in await tx.execute(_STUCK) if row.n is not None]
    if not numbers:
        return 0
    return len((await tx.execute(_SET_STUCK_DUE, {"all_n": padded(numbers), "now": await tx.now()})).all())


async def delivery(tx: Transaction, room_id: str, seq: int) -> DeliveryRecord | None:
    """Return a delivery of a room."""
    row = (await tx.execute(_GET_DELIVERY, {"room_id": room_id, "seq": seq})).first()
    return None if row is None else DeliveryRecord(*row)


# The rows of a window are read by one index, whatever their filter.
_WINDOW = 2000
_OF_WINDOW = (
    "SELECT {} FROM joblib_outbox WHERE room_id = :room_id AND seq < :before "
    f"ORDER BY seq DESC LIMIT {_WINDOW}"
)
_LAST_OF_WINDOW = statement(
    f"SELECT min(seq), count(*) FROM ({_OF_WINDOW.format('seq')}) AS page",
    *("seq", "number"),
    before=BIG_INTEGER,
)


@cache
def _list_statement(filters: tuple[str, ...], state: str | None) -> Any:
    conditions = "".join(_FILTERS[name] for name in filters) + _STATES.get(state or "", "")
    source = f"joblib_outbox WHERE room_id = :room_id AND seq < :before{conditions}"
    if conditions and "task_id" not in filters:
        source = f"({_OF_WINDOW.format('*')}) AS page WHERE {conditions.removeprefix(' AND ')}"
    return statement(
        f"SELECT {', '.join(_ROWS)} FROM {source} ORDER BY seq DESC LIMIT :limit", *_ROWS, before=BIG_INTEGER
    )


async def deliveries(
    tx: Transaction, room_id: str, before: int, limit: int, filters: Mapping[str, Any], state: str | None
) -> tuple[list[DeliveryRecord], int | None]:
    """Return the newest deliveries of a room before a number, with these values of columns and this state.

    Return also before which number to continue, None at the end. Filters other than a task read at most 2,000
    deliveries, of which perhaps none matches.
    """
    query, params = _list_statement(tuple(sorted(filters)), state), {"room_id": room_id, "before": before}
    rows = [
        DeliveryRecord(*row) for row in await tx.execute(query, {**params, "limit": limit + 1, **filters})
    ]
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].seq
    if "task_id" in filters or not (filters or state):
        return rows, None
    last = (await tx.execute(_LAST_OF_WINDOW, params)).one()
    return rows, last.seq if last.number == _WINDOW else None


async def prune_deliveries(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete the oldest deliveries that have ended and are older than a time. Return how many."""
    numbers = list((await tx.execute(_OLDEST_ROWS, {"before": before, "limit": limit})).scalars())
    if not numbers:
        return 0
    return len((await tx.execute(_REMOVE_ROWS, {"all_seq": padded(numbers)})).all())


async def prune_targets(tx: Transaction, before: datetime, after: int, limit: int) -> tuple[int, int]:
    """Delete webhooks that no room and no task has, and that were not used since a time.

    It looks at the next ones after a number. Return how many it deleted, and where to continue.
    """
    numbers = list((await tx.execute(_FOLLOWING, {"after": after, "limit": limit})).scalars())
    if not numbers:
        return 0, 0
    params = {"all_n": padded(numbers), "before": before}
    unused = list((await tx.execute(_LOCK_UNUSED, params)).scalars())
    if unused:
        await tx.execute(_REMOVE_TARGETS, {"all_n": padded(unused)})
    return len(unused), numbers[-1] if len(numbers) == limit else 0
