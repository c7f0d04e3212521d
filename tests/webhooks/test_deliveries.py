"""What is delivered, in which order, how often and for how long; and what dead receivers do not delay."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from certificates import Certificate
from databases import every_kind
from receiver import Receiver, receiving
from replica import ADMIN, ManualClock, OpenReplica, Replica
from sqlalchemy import insert, select, update
from waiting import until

from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import OutboxRow, RoomStream, TaskWebhook, Webhook
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import rules_retention, rules_task_retention, rules_webhooks
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.wire.messages import JobResponse, TaskResponse
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.webhooks import WebhookRequest, WebhookResponse

OUTBOX, WEBHOOKS, LINKS = OutboxRow.__table__, Webhook.__table__, TaskWebhook.__table__


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Let the server send to receivers of this machine."""
    settings.webhook_http, settings.webhook_ports = True, ["1-65535"]
    settings.webhook_networks, settings.webhook_timeout_seconds = ["127.0.0.0/8"], 20
    return settings


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Run a receiver."""
    async with receiving() as receiver:
        yield receiver


async def put(replica: Replica, url: str, name: str = "ci", **fields: Any) -> WebhookResponse:
    """Create or replace a webhook of the room lab."""
    request = WebhookRequest(url=url, **fields)
    item = rules_webhooks.NewWebhook(ADMIN, "lab", name, request, replica.runtime.settings)
    webhook, _ = await replica.runtime.write(rules_webhooks.put, item)
    return webhook


async def shown(replica: Replica, name: str = "ci") -> WebhookResponse:
    """Return a webhook of the room lab."""
    return await replica.runtime.database.read(rules_webhooks.get, "lab", name)


async def end(replica: Replica, job: JobResponse, **options: Any) -> TaskResponse:
    """Submit a task and complete it."""
    task = await replica.submit(job, **options)
    await replica.start(job.worker_id)
    return await replica.report(task.id, TaskStatus.COMPLETED)


async def outcomes(replica: Replica) -> list[tuple[bool, bool, int]]:
    """Return of each delivery whether it has ended and was delivered, and its attempts."""
    rows = await replica.rows(OUTBOX)
    rows.sort(key=lambda row: row.seq)
    return [(row.ended_at is not None, row.delivered, row.attempts) for row in rows]


@every_kind
async def test_deliveries_keep_the_order_of_their_webhook(
    timed: Replica, clock: ManualClock, receiver: Receiver
) -> None:
    """While the first fails none is sent; then all arrive in the order of the ends."""
    job, webhooks = await timed.register(), Webhooks(timed.runtime)
    await put(timed, receiver.url())
    receiver.answers["/hook"], receiver.headers = 500, "Set-Cookie: session=1\r\n"
    tasks = [str((await end(timed, job)).id) for _ in range(3)]
    await webhooks.deliver_due()
    assert receiver.tasks() == tasks[:1]
    await webhooks.deliver_due()
    assert len(receiver.received) == 1
    receiver.answers.clear()
    clock.advance(10)
    await webhooks.deliver_due()
    assert receiver.tasks() == [tasks[0], *tasks]
    assert not any("cookie" in item.headers for item in receiver.received)
    assert await outcomes(timed) == [(True, True, 2), (True, True, 1), (True, True, 1)]
    webhook = await shown(timed)
    assert (webhook.state, webhook.failures, webhook.waiting) == ("active", 0, 0)


@every_kind
async def test_a_delivery_is_tried_for_three_days(
    timed: Replica, clock: ManualClock, receiver: Receiver
) -> None:
    """The pauses grow to six hours; then all that waited as long is given up, and later ones go on."""
    job, webhooks = await timed.register(), Webhooks(timed.runtime)
    await put(timed, receiver.url())
    receiver.answers["/hook"] = "reset"
    await end(timed, job)
    await end(timed, job)
    began, pauses = clock.now, []
    while (await outcomes(timed))[0][0] is False:
        await webhooks.deliver_due()
        webhook = await shown(timed)
        assert webhook.next_attempt_at is not None
        pauses.append((webhook.next_attempt_at - clock.now).total_seconds())
        clock.now = webhook.next_attempt_at
    expected = [min(5 * 4.0**number, 21_600) for number in range(len(pauses))]
    assert all(0.8 * mean <= pause <= 1.2 * mean for mean, pause in zip(expected, pauses, strict=True))
    assert timedelta(days=3) < clock.now - began < timedelta(days=3.7)
    assert 15 < len(pauses) < 25
    for row in await timed.rows(OUTBOX):
        assert (row.ended_at is not None, row.delivered) == (True, False)
        assert "the connection was" in row.error or "given up after 3 days" in row.error
    receiver.answers.clear()
    task = await end(timed, job)
    clock.advance(21_600 * 1.2)
    await webhooks.deliver_due()
    assert receiver.tasks()[-1] == str(task.id)


@every_kind
async def test_dead_receivers_delay_no_other(timed: Replica, receiver: Receiver) -> None:
    """Receivers that answer nothing hold half of the slots at most; the others get what happens meanwhile."""
    job, settings = await timed.register(), timed.runtime.settings
    settings.webhook_concurrency = 4
    webhooks = Webhooks(timed.runtime)
    for number in range(6):
        await put(timed, receiver.url(f"/dead-{number}"), f"dead-{number}")
        receiver.answers[f"/dead-{number}"] = "hang"
    await timed.execute(update(WEBHOOKS).values(failures=1))
    await put(timed, receiver.url("/alive"), "alive")
    running = asyncio.create_task(webhooks.run())
    try:
        async with asyncio.timeout(60):
            for count in range(1, 4):
                task = await end(timed, job)
                assert (await receiver.wait_for(count, "/alive"))[-1].event["data"]["id"] == str(task.id)
                dead = {item.path for item in receiver.received if item.path != "/alive"}
                assert len(dead) <= 2
    finally:
        for _ in range(2):
            running.cancel()
        await asyncio.wait([running])


async def test_operators_see_which_webhooks_fail(
    timed: Replica, clock: ManualClock, receiver: Receiver
) -> None:
    """A finding names a webhook after five failures, without its URL; metrics count, and have the lag."""
    job, webhooks = await timed.register(), Webhooks(timed.runtime)
    await put(timed, receiver.url())
    receiver.answers["/hook"] = "reset"
    await end(timed, job)
    for failures in range(1, 6):
        overview = await timed.overview()
        assert [item for item in overview.findings if item.code.startswith("webhook")] == []
        await webhooks.deliver_due()
        webhook = await shown(timed)
        assert (webhook.failures, webhook.state) == (failures, "failing")
        clock.now = webhook.next_attempt_at or clock.now
    overview = await timed.overview()
    [finding] = [item for item in overview.findings if item.code == "webhook-failing"]
    assert (finding.room, finding.count) == ("lab", 5)
    assert str(receiver.port) not in finding.detail
    clock.advance(7)
    figures = await timed.metrics()
    assert (figures.failing_webhooks, figures.disabled_webhooks) == (1, 0)
    assert (figures.webhook_lag_seconds, webhooks.outcomes["unreachable"]) == (7, 5)
    receiver.answers.clear()
    await webhooks.deliver_due()
    figures = await timed.metrics()
    assert (figures.failing_webhooks, figures.webhook_lag_seconds) == (0, 0)


async def add_targets(replica: Replica, owner: str, url: str, count: int) -> None:
    """Add so many webhooks of tasks of a user, each with a delivery that is due for long."""
    at, numbers = datetime(2026, 1, 1, tzinfo=UTC), range(1001, 1001 + count)
    target: dict[str, Any] = {"room_id": "lab", "owner_id": owner, "url": url, "events": "task.completed"}
    target |= dict.fromkeys(("created_at", "updated_at", "used_at", "due_at"), at)
    delivery: dict[str, Any] = {"room_id": "lab", "event": "task.completed", "created_at": at}
    delivery |= {"body": '{"type": "task.completed"}', "attempts": 0, "delivered": False}
    webhooks = [{**target, "n": n, "webhook_id": uuid4(), "failures": 0} for n in numbers]
    await replica.execute(insert(WEBHOOKS).values(webhooks))
    rows = [{**delivery, "webhook_n": n, "message": uuid4()} for n in numbers]
    await replica.execute(insert(OUTBOX).values(rows))


@pytest.mark.parametrize("failures", [0, 1])
async def test_the_targets_of_one_user_delay_no_other(
    replica: Replica, receiver: Receiver, failures: int
) -> None:
    """A user with hundreds of receivers that hang holds three quarters of the slots; others get the rest."""
    replica.runtime.settings.webhook_concurrency = 8
    job, webhooks = await replica.register(), Webhooks(replica.runtime)
    receiver.answers["/hang"] = "hang"
    await add_targets(replica, "mallory", receiver.url("/hang"), 250)
    await put(replica, receiver.url())
    await replica.execute(update(WEBHOOKS).values(failures=failures))
    running = asyncio.create_task(webhooks.run())
    try:
        async with asyncio.timeout(60):
            task = await end(replica, job)
            share = 3 if failures else 6
            await receiver.wait_for(share, "/hang")
            assert (await receiver.wait_for(1))[0].event["data"]["id"] == str(task.id)
            await until(partial(has_delivered, replica, 1))
        assert len(receiver.received) == share + 1
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_names_of_one_user_delay_no_other(replica: Replica, receiver: Receiver) -> None:
    """A user whose names do not resolve holds a part of the threads that resolve them."""
    replica.runtime.settings.webhook_timeout_seconds = 0.5
    gate, job = threading.Event(), await replica.register()

    def resolve(host: str, port: int) -> Sequence[str]:
        if host == "slow.example":
            gate.wait()
        return ["127.0.0.1"]

    await add_targets(replica, "mallory", receiver.url("/slow", "slow.example"), 50)
    webhooks = Webhooks(replica.runtime, resolve=resolve)
    try:
        await webhooks.deliver_due()
        replica.runtime.settings.webhook_timeout_seconds = 20
        await put(replica, receiver.url("/hook", "fast.example"))
        await end(replica, job)
        async with asyncio.timeout(60):
            await webhooks.deliver_due()
        assert [item.path for item in receiver.received] == ["/hook"]
        errors = {row.last_error for row in await replica.rows(WEBHOOKS)}
        assert "refused: 8 names of this user are being resolved; it is tried again later" in errors
    finally:
        gate.set()


@every_kind
async def test_a_submit_enables_its_webhook_again(replica: Replica, receiver: Receiver) -> None:
    """After the answer 410, which ends what waits for it."""
    job, webhooks = await replica.register(), Webhooks(replica.runtime)
    receiver.answers["/task"] = 410
    await end(replica, job, webhook={"url": receiver.url("/task")})
    await webhooks.deliver_due()
    receiver.answers.clear()
    task = await end(replica, job, webhook={"url": receiver.url("/task")})
    await webhooks.deliver_due()
    assert receiver.tasks("/task")[1:] == [str(task.id)]
    assert (await replica.rows(WEBHOOKS))[0].disabled_at is None


def test_the_next_slot_is_for_the_owner_with_the_fewest() -> None:
    """Of those who use as many, for the one whose webhook was due first; and none gets more than a share."""
    candidates = [(1, "ada"), (2, "ada"), (3, "bob"), (4, "ada"), (5, "cleo")]
    choose = rules_webhooks.fair_choice
    assert choose(candidates, 10, 9, {}) == [1, 3, 5, 2, 4]
    assert choose(candidates, 3, 9, {"ada": 1}) == [3, 5, 1]
    assert choose(candidates, 10, 2, {"ada": 1, "bob": 2}) == [5, 1]
    assert choose([], 10, 2, {}) == []


async def test_one_deadline_is_over_all_parts(replica: Replica, receiver: Receiver) -> None:
    """A name that does not resolve, a black hole, and an answer that never ends all fail in time."""
    replica.runtime.settings.webhook_timeout_seconds = 0.3
    job, gate = await replica.register(), asyncio.Event()

    def never(host: str, port: int) -> Sequence[str]:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return []

    loop = asyncio.get_running_loop()
    webhooks = Webhooks(replica.runtime, resolve=never)
    receiver.answers["/hang"] = "hang"
    for name, url in (("name", "http://slow.example/"), ("answer", receiver.url("/hang"))):
        await put(replica, url, name)
    await end(replica, job)
    async with asyncio.timeout(30):
        await webhooks.deliver_due()
    for name in ("name", "answer"):
        assert (await shown(replica, name)).last_error == "no answer within 0.3 s (webhook_timeout_seconds)"
    gate.set()


async def test_answers_are_not_followed_read_or_shown(
    replica: Replica, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A redirect is a failure, a long answer is cut; no log has its text, the path or the secret."""
    caplog.set_level("DEBUG")
    job, webhooks = await replica.register(), Webhooks(replica.runtime)
    receiver.answers["/token-in-path"] = 302
    receiver.headers = f"Location: {receiver.url('/inner')}\r\n"
    receiver.body = b"answer-of-the-receiver" * 100_000
    await put(replica, receiver.url("/token-in-path"), secret="whsec_" + "c2VjcmV0" * 6)
    await end(replica, job)
    await webhooks.deliver_due()
    assert [item.path for item in receiver.received] == ["/token-in-path"]
    webhook = await shown(replica)
    assert webhook.last_error == "the receiver answered 302"
    rows = await replica.rows(OUTBOX)
    text = f"{caplog.text} {webhook!r} {[(row.error, row.body) for row in rows]}".replace(webhook.url, "")
    for secret in ("answer-of-the-receiver", "token-in-path", "c2VjcmV0"):
        assert secret not in text
    assert "A delivery to a webhook failed: room=lab webhook=ci" in caplog.text


@every_kind
async def test_a_lease_that_ran_out_goes_to_another_server(
    replica: Replica, open_replica: OpenReplica, receiver: Receiver
) -> None:
    """One of two servers delivers; if it stops amid an attempt, the other repeats it with the same id."""
    job = await replica.register()
    await put(replica, receiver.url())
    await end(replica, job)
    receiver.gate = asyncio.Event()
    first, second = Webhooks(replica.runtime), Webhooks(open_replica().runtime)
    lost = asyncio.create_task(first.deliver_due())
    async with asyncio.timeout(60):
        await receiver.wait_for(1)
        await second.deliver_due()
        assert len(receiver.received) == 1
        past = (await replica.rows(WEBHOOKS))[0].due_at - timedelta(hours=1)
        await replica.execute(update(WEBHOOKS).values(due_at=past))
        again = asyncio.create_task(second.deliver_due())
        await receiver.wait_for(2)
        receiver.gate.set()
        await asyncio.gather(lost, again)
    assert len({item.headers["webhook-id"] for item in receiver.received}) == 1
    assert [outcome[:2] for outcome in await outcomes(replica)] == [(True, True)]


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_a_delivery_that_is_being_added_keeps_its_webhook_due(
    replica: Replica, receiver: Receiver
) -> None:
    """A transaction that commits just after the server found nothing is not missed."""
    job, webhooks = await replica.register(), Webhooks(replica.runtime)
    await put(replica, receiver.url())
    await end(replica, job)
    has_written, may_commit = asyncio.Event(), asyncio.Event()

    async def slow_end(tx: Transaction) -> None:
        async def wait() -> None:
            has_written.set()
            await may_commit.wait()

        async def facts() -> dict[str, Any]:
            return {"id": "g"}

        rules_webhooks.group_ended(tx, "lab", facts)
        tx.before_commit(wait)

    slow = asyncio.create_task(replica.runtime.write(slow_end))
    await has_written.wait()
    delivering = asyncio.create_task(webhooks.deliver_due())
    await receiver.wait_for(1)
    await until(partial(has_delivered, replica, 1))
    may_commit.set()
    await slow
    async with asyncio.timeout(60):
        await receiver.wait_for(2)
        await delivering
    assert receiver.events() == ["task.completed", "group.ended"]


async def has_delivered(replica: Replica, count: int) -> bool:
    """Return whether so many deliveries have ended."""
    return sum(outcome[0] for outcome in await outcomes(replica)) == count


@every_kind
async def test_too_many_waiting_deliveries_are_dropped(timed: Replica, receiver: Receiver) -> None:
    """A receiver that does not answer cannot fill the database; the error says which limit it was."""
    timed.runtime.settings.max_waiting_deliveries = 2
    job, webhooks = await timed.register(), Webhooks(timed.runtime)
    await put(timed, receiver.url())
    receiver.answers["/hook"] = 500
    for _ in range(3):
        await end(timed, job)
    await webhooks.deliver_due()
    rows = await timed.rows(OUTBOX)
    assert all(row.ended_at is not None and not row.delivered for row in rows)
    assert "max_waiting_deliveries" in max(rows, key=lambda row: row.seq).error


@every_kind
async def test_what_is_kept_of_webhooks(timed: Replica, clock: ManualClock, receiver: Receiver) -> None:
    """Deliveries 30 days; the target of a task as long as the task, and one of a deleted room a day."""
    job, webhooks = await timed.register(), Webhooks(timed.runtime)
    await put(timed, receiver.url())
    await end(timed, job, webhook={"url": receiver.url("/task")})
    await webhooks.deliver_due()
    await timed.runtime.write(rules_webhooks.delete, "lab", "ci", timed.runtime.settings)
    await webhooks.deliver_due()
    [stream] = await timed.rows(RoomStream.__table__)
    assert (stream.webhook_events, stream.watched_until) == (None, clock.now + timedelta(minutes=15))

    async def prune(retention: rules_retention.Retention) -> None:
        keep = retention.keep_time(timed.runtime.settings)
        await timed.runtime.write(
            rules_retention.prune, retention=retention, keep=keep, after=retention.first
        )

    by_rows = {retention.rows: retention for retention in rules_retention.RETENTIONS}
    clock.advance(86_400 * 2)
    await prune(by_rows["webhook"])
    await prune(by_rows["outbox"])
    assert [row.url for row in await timed.rows(WEBHOOKS)] == [receiver.url("/task")]
    assert len(await timed.rows(OUTBOX)) == 2
    clock.advance(86_400 * 29)
    timed.runtime.settings.keep_finished_days = 1
    await prune(by_rows["outbox"])
    await timed.runtime.write(rules_task_retention.prune, timed.runtime.settings, TaskPruning())
    await prune(by_rows["webhook"])
    for table in (OUTBOX, LINKS, WEBHOOKS):
        assert await timed.rows(table) == []


async def test_rows_of_a_very_long_transaction_are_found(replica: Replica, receiver: Receiver) -> None:
    """The loop looks for webhooks that have waiting rows and are not due, from time to time."""
    job = await replica.register()
    await put(replica, receiver.url())
    await end(replica, job)
    await replica.execute(update(WEBHOOKS).values(due_at=None))
    running = asyncio.create_task(Webhooks(replica.runtime, poll_seconds=0.1).run())
    async with asyncio.timeout(60):
        await receiver.wait_for(1)
    running.cancel()
    await asyncio.wait([running])


async def test_the_name_of_the_host_is_kept_for_tls(
    replica: Replica, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server connects to the checked address, and compares the certificate with the name."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    names: list[str | None] = []
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    resolved: list[str] = []

    def resolve(host: str, port: int) -> Sequence[str]:
        resolved.append(host)
        return ["127.0.0.1"]

    job = await replica.register()
    webhooks = Webhooks(replica.runtime, resolve=resolve)
    async with receiving(context) as receiver:
        await put(replica, receiver.url("/name", "hooks.example.test"), "name")
        await put(replica, receiver.url("/address"), "address")
        await end(replica, job)
        await webhooks.deliver_due()
        assert (sorted(names, key=str), resolved) == ([None, "hooks.example.test"], ["hooks.example.test"])
        assert [item.path for item in receiver.received] == ["/address"]
        assert receiver.received[0].headers["host"] == f"127.0.0.1:{receiver.port}"
    text = (await shown(replica, "name")).last_error
    assert text == "the certificate of the receiver is not valid for its name"


async def test_a_name_that_leads_to_a_private_address_is_refused_at_each_attempt(
    replica: Replica, receiver: Receiver
) -> None:
    """Also if an earlier attempt resolved it to another address, and if only one of several is private."""
    answers = [["127.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["169.254.169.254"], ["::ffff:10.0.0.1"], []]
    job = await replica.register()
    webhooks = Webhooks(replica.runtime, resolve=lambda host, port: answers.pop(0))
    await put(replica, receiver.url("/hook", "rebinding.example"))
    await end(replica, job)
    await webhooks.deliver_due()
    assert len(receiver.received) == 1
    await end(replica, job)
    errors = []
    while answers:
        await webhooks.deliver_due()
        webhook = await shown(replica)
        errors.append(webhook.last_error)
        await replica.execute(update(WEBHOOKS).values(due_at=select(WEBHOOKS.c.created_at).scalar_subquery()))
    assert len(receiver.received) == 1
    assert all(error is not None and error.startswith("refused: ") for error in errors)
    assert not any("10.0" in (error or "") or "169.254" in (error or "") for error in errors)
