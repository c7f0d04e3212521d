"""Deliver the outbox to webhooks: the loop of a server, and one signed request.

httpx connects to a checked address by its URL, with the name of the host in the header `Host` and in TLS, so
that no second resolution of the name can lead elsewhere. It is loaded when a
server has its first webhook.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from math import ceil
from typing import Any

from zndraw_joblib.jobs.logs import create_shared_task, log_failed_work
from zndraw_joblib.server.process.addresses import (
    Endpoint,
    EndpointRefused,
    check_addresses,
    endpoint_of,
    literal_address,
)
from zndraw_joblib.server.process.ports import WEBHOOKS_KEY
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.threads import call_in_thread
from zndraw_joblib.server.queue import rules_webhooks, sql_webhooks
from zndraw_joblib.server.queue.rules_webhooks import Attempt, Outcome, Slots
from zndraw_joblib.server.queue.sql_webhooks import DeliveryRecord, WebhookRecord
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.webhooks import SECRET_PREFIX

logger = logging.getLogger(__name__)

# A server that stopped is replaced after an attempt and this time for the database.
_LEASE_MARGIN_SECONDS = 10.0
# Events that follow each other are looked for together.
_PAUSE_SECONDS = 0.02
_RETRY_SECONDS, _FINISH_SECONDS, _AGAIN_SECONDS = 5.0, 5.0, 0.25
# The deliveries in a row after which a webhook gives its slot to the next.
_MAX_IN_A_ROW = 50
# The webhooks of one user get this part of the slots at most.
_SHARE_OF_OWNER = 0.75
# The most addresses of a host that are tried, and the most bytes of an answer that are read; none is kept.
_MAX_ADDRESSES, _MAX_ANSWER_BYTES = 4, 16 * 1024
# Threads that resolve names, with those that exceed the time limit: of all users, and of one.
_MAX_RESOLVING, _MAX_RESOLVING_OF_OWNER = 32, 8
Resolve = Callable[[str, int], Sequence[str]]
OUTCOMES = ("delivered", "rejected", "unreachable", "refused")


def signatures(webhook: WebhookRecord, message: str, timestamp: int, body: bytes, now: datetime) -> str:
    """Return the header `webhook-signature`: of the secret, and of the one before while it is valid."""
    signed = f"{message}.{timestamp}.".encode() + body
    texts = []
    for secret in _valid_secrets(webhook, now):
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        texts.append(f"v1,{base64.b64encode(digest).decode()}")
    return " ".join(texts)


def _valid_secrets(webhook: WebhookRecord, now: datetime) -> Iterator[str]:
    if webhook.secret is not None:
        yield webhook.secret
    until = webhook.previous_until
    if webhook.previous_secret is not None and until is not None and now < until:
        yield webhook.previous_secret


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order in which the system prefers them. It may take long."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class Sender:
    """Sends deliveries, each with one deadline over name, connection, TLS and answer.

    It follows no redirects, uses no proxy, and reads at most 16 KiB of an answer.
    """

    def __init__(self, settings: JobLibSettings, resolve: Resolve = resolve) -> None:
        self._settings, self._resolve = settings, resolve
        self._resolving: Counter[str] = Counter()

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def client(self) -> Any:
        """Return a client of httpx for one webhook: connections are of its host alone."""
        import httpx  # noqa: PLC0415 - see above

        return httpx.AsyncClient(
            verify=self._context,
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # nothing of an answer is kept
            timeout=None,  # noqa: S113 - the deadline is around the whole attempt
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
        )

    async def send(
        self, client: Any, webhook: WebhookRecord, delivery: DeliveryRecord, now: datetime
    ) -> Outcome:
        """Send a delivery. Return the status of the answer, or why there is none; it raises nothing."""
        seconds = self._settings.webhook_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                endpoint = endpoint_of(webhook.url, self._settings)
                addresses = await self._addresses(endpoint, webhook.owner_id)
                return await self._post(client, endpoint, addresses, webhook, delivery, now)
        except TimeoutError:
            return Outcome(None, f"no answer within {seconds:g} s (webhook_timeout_seconds)")
        except EndpointRefused as refusal:
            return Outcome(None, f"{rules_webhooks.REFUSED}{refusal}")
        except OSError as error:
            return Outcome(None, f"the name of the host cannot be resolved ({type(error).__name__})")
        except Exception as error:
            if not _is_of_request(error):
                raise
            return Outcome(None, _text(error))

    async def _addresses(self, endpoint: Endpoint, owner_id: str) -> list[str]:
        literal = literal_address(endpoint.host)
        addresses = [literal] if literal is not None else await self._resolved(endpoint, owner_id)
        return check_addresses(addresses, self._settings)[:_MAX_ADDRESSES]

    async def _resolved(self, endpoint: Endpoint, owner_id: str) -> Sequence[str]:
        """Resolve a name. A thread cannot be stopped, so names of one user do not take all of them."""
        own = self._resolving[owner_id]
        if self._resolving.total() >= _MAX_RESOLVING or own >= _MAX_RESOLVING_OF_OWNER:
            raise EndpointRefused(f"{own} names of this user are being resolved; it is tried again later")
        self._resolving[owner_id] += 1
        work = partial(_resolved_or_error, self._resolve, endpoint)
        future = call_in_thread("zndraw-joblib webhook name", work, _as_error)
        future.add_done_callback(partial(self._is_resolved, owner_id))
        addresses, error = await asyncio.shield(future)
        if error is not None:
            raise error
        return addresses

    def _is_resolved(self, owner_id: str, _: object) -> None:
        self._resolving[owner_id] -= 1
        if not self._resolving[owner_id]:
            del self._resolving[owner_id]

    async def _post(
        self,
        client: Any,
        endpoint: Endpoint,
        addresses: Sequence[str],
        webhook: WebhookRecord,
        delivery: DeliveryRecord,
        now: datetime,
    ) -> Outcome:
        content, message = delivery.body.encode(), rules_webhooks.message_id(delivery)
        timestamp = int(now.timestamp())
        headers = {
            "Host": endpoint.authority,
            "Content-Type": "application/json",
            "User-Agent": f"zndraw-joblib/{version('zndraw-joblib')}",
            "Accept-Encoding": "identity",
            "webhook-id": message,
            "webhook-timestamp": str(timestamp),
        }
        if signature := signatures(webhook, message, timestamp, content, now):
            headers["webhook-signature"] = signature
        from httpx import ConnectError  # noqa: PLC0415 - see above

        extensions = {"sni_hostname": endpoint.host} if literal_address(endpoint.host) is None else {}
        for index, address in enumerate(addresses):
            host = f"[{address}]" if ":" in address else address
            url = f"{endpoint.scheme}://{host}:{endpoint.port}{endpoint.target}"
            request = client.build_request(
                "POST", url, headers=headers, content=content, extensions=dict(extensions)
            )
            try:
                return await self._answer(client, request)
            except ConnectError:
                if index == len(addresses) - 1:
                    raise
        raise EndpointRefused("the name of the host has no address")

    async def _answer(self, client: Any, request: Any) -> Outcome:
        from httpx import HTTPError  # noqa: PLC0415 - see above

        response = await client.send(request, stream=True)
        try:
            size = 0
            # The rest of a short answer is read so that the connection can be used again.
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > _MAX_ANSWER_BYTES:
                    break
        except HTTPError:
            logger.debug("The answer of a webhook was cut off")
        finally:
            await response.aclose()
        return Outcome(response.status_code)


def _resolved_or_error(resolve: Resolve, endpoint: Endpoint) -> tuple[Sequence[str], Exception | None]:
    return resolve(endpoint.host, endpoint.port), None


def _as_error(error: BaseException) -> tuple[Sequence[str], Exception | None]:
    return [], error if isinstance(error, Exception) else OSError(repr(error))


def _is_of_request(error: Exception) -> bool:
    from httpx import HTTPError, InvalidURL  # noqa: PLC0415 - see above

    return isinstance(error, HTTPError | InvalidURL | ValueError)


# Of classes of httpx.
_TEXTS = {
    "ConnectError": "no connection: it was refused, or TLS failed",
    "RemoteProtocolError": "the receiver closed the connection, or sent no HTTP",
    "ReadError": "the connection was reset",
    "WriteError": "the connection was reset",
}


def _text(error: Exception) -> str:
    """Return why there is no answer, without addresses and without what the receiver sent."""
    for kind in type(error).__mro__:
        if text := _TEXTS.get(kind.__name__):
            is_tls = "certificate" in str(error).lower()
            return "the certificate of the receiver is not valid for its name" if is_tls else text
    return f"the request failed ({type(error).__name__})"


class Webhooks:
    """Delivers what is due, and sleeps until the next webhook is.

    A transaction that adds a delivery to a webhook without one wakes the loop of each server; it also looks
    after `poll_seconds`. At most `webhook_concurrency` webhooks get deliveries at once, one each. At most
    half of these slots are for webhooks whose last attempt failed, and at most three quarters of each kind
    for those of one user: those that answer nothing do not delay others. `outcomes` counts the attempts of
    this process.
    """

    def __init__(self, runtime: Runtime, *, poll_seconds: float = 60.0, resolve: Resolve = resolve) -> None:
        self._runtime, self._poll_seconds = runtime, poll_seconds
        self._sender = Sender(runtime.settings, resolve)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._turns: dict[asyncio.Task[None], WebhookRecord] = {}
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        runtime.waiters.subscribe(WEBHOOKS_KEY, self._wake)

    def _wake(self, _: str = "") -> None:
        loop = self._loop
        if loop is not None and not self._woken.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Deliver until cancelled; then end the attempts under way."""
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        look_at = time.monotonic() + self._poll_seconds
        try:
            while True:
                seconds = await self._begin_due()
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._woken.wait()
                if self._woken.is_set():
                    await asyncio.sleep(_PAUSE_SECONDS)
                    self._woken.clear()
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + self._poll_seconds
                    await self._find_stuck()
        finally:
            await self._end_turns()

    async def deliver_due(self) -> None:
        """Deliver what is due now, until nothing is."""
        while True:
            await self._begin_due()
            if not self._turns:
                return
            await asyncio.wait(list(self._turns))

    async def _end_turns(self) -> None:
        """Let the attempts under way end. Those that take too long are repeated after their leases."""
        turns = list(self._turns)
        if turns:
            await asyncio.wait(turns, timeout=_FINISH_SECONDS)
        for turn in turns:
            turn.cancel()

    async def _find_stuck(self) -> None:
        try:
            await self._runtime.write(sql_webhooks.find_stuck)
        except Exception as error:
            log_failed_work(logger, error, "Waiting deliveries were not looked for")

    @property
    def _lease_seconds(self) -> float:
        return self._runtime.settings.webhook_timeout_seconds + _LEASE_MARGIN_SECONDS

    async def _begin_due(self) -> float:
        """Begin to deliver to due webhooks. Return the seconds until it should look again."""
        slots = self._slots()
        if slots.free <= 0:
            return self._poll_seconds  # a turn that ends wakes the loop
        try:
            due = await self._runtime.write(rules_webhooks.take, slots, self._lease_seconds)
        except Exception as error:
            log_failed_work(logger, error, "Deliveries to webhooks wait, and are tried again")
            return _RETRY_SECONDS
        for attempt in due.attempts:
            turn = create_shared_task(self._deliver(attempt), name="zndraw-joblib webhook")
            self._turns[turn] = attempt.webhook
            turn.add_done_callback(self._ended)
        # A webhook that is due and gets no slot now waits for the end of a turn, which wakes the loop.
        return (
            self._poll_seconds
            if due.seconds is None
            else min(self._poll_seconds, max(_AGAIN_SECONDS, due.seconds))
        )

    def _slots(self) -> Slots:
        number = self._runtime.settings.webhook_concurrency
        for_failing = max(1, number // 2)
        failing = [webhook.owner_id for webhook in self._turns.values() if webhook.failures]
        return Slots(
            free=number - len(self._turns),
            free_for_failing=for_failing - len(failing),
            share=ceil(_SHARE_OF_OWNER * number),
            share_of_failing=ceil(_SHARE_OF_OWNER * for_failing),
            used=Counter(webhook.owner_id for webhook in self._turns.values()),
            used_by_failing=Counter(failing),
        )

    def _ended(self, turn: "asyncio.Task[None]") -> None:
        del self._turns[turn]
        if not turn.cancelled() and isinstance(error := turn.exception(), Exception):
            # At the end of its lease it is tried again.
            log_failed_work(logger, error, "An attempt to deliver to a webhook was not recorded")
        self._woken.set()

    async def _deliver(self, first: Attempt) -> None:
        """Deliver to a webhook until nothing waits, an attempt fails, or others had to wait long enough."""
        attempt: Attempt | None = first
        settings = self._runtime.settings
        async with self._sender.client() as client:
            for _ in range(_MAX_IN_A_ROW):
                if attempt is None:
                    return
                outcome = None
                if attempt.delivery is not None and attempt.webhook.disabled_at is None:
                    outcome = await self._sender.send(client, attempt.webhook, attempt.delivery, attempt.at)
                    self._count(attempt, outcome)
                attempt = await self._runtime.write(
                    rules_webhooks.record, attempt, outcome, settings, lease_seconds=self._lease_seconds
                )
        if attempt is not None:
            await self._runtime.write(rules_webhooks.give_way, attempt)

    def _count(self, attempt: Attempt, outcome: Outcome) -> None:
        self.outcomes[outcome.kind] += 1
        if not outcome.is_success:
            webhook = attempt.webhook
            logger.info(
                "A delivery to a webhook failed: room=%s webhook=%s failures=%d error=%s",
                *(webhook.room_id, webhook.name, webhook.failures + 1, outcome.text),
            )
