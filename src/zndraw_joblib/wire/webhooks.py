"""Webhooks: which events a room or a task sends to which URL, signed as Standard Webhooks 1.0 says."""

import base64
import binascii
import re
import secrets
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field

from zndraw_joblib.wire.bodies import CheckedKeywords, Name, RequestBody, ResponseBody, is_none

MAX_URL = 2048
SECRET_PREFIX = "whsec_"  # noqa: S105 - no secret
_SECRET_BYTES = (24, 64)
_DAY_SECONDS = 86_400
# Characters that every parser of URLs reads alike.
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


class WebhookEvent(StrEnum):
    """What a webhook may send. `webhook.test` is sent on request alone."""

    TASK_STARTED = "task.started"
    TASK_COMPLETED = "task.completed"
    TASK_FAILED = "task.failed"
    TASK_CANCELLED = "task.cancelled"
    GROUP_ENDED = "group.ended"
    TEST = "webhook.test"


EndEvent = Literal["task.completed", "task.failed", "task.cancelled"]
RoomEvent = Literal["task.started", "task.completed", "task.failed", "task.cancelled", "group.ended"]
_ENDS: list[EndEvent] = ["task.completed", "task.failed", "task.cancelled"]
_ALL_ENDS: list[RoomEvent] = [*_ENDS, "group.ended"]


def _url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError("it may have the characters of a URL only, others as %xx, and a host as xn--…")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("it is no URL: write it as https://host/path") from error
    if parts.scheme not in {"https", "http"}:
        raise ValueError("it must begin with https://")
    if "@" in parts.netloc:
        raise ValueError("it may have no user name and no password; the secret signs each delivery")
    if parts.fragment or text.endswith("#"):
        raise ValueError("it may have no fragment (#…)")
    host = parts.netloc if port is None else parts.netloc.removesuffix(f":{port}")
    if not _HOST.fullmatch(host) or port == 0:
        raise ValueError("its host is a name or an address, with a port if needed: https://host:8443/path")
    return text


def _secret(text: str) -> str:
    # Without the value: answers and logs have this text.
    hint = f"it is {SECRET_PREFIX} and 24 to 64 bytes as base64; omit it to keep that of the webhook"
    if not text.startswith(SECRET_PREFIX):
        raise ValueError(hint)
    try:
        size = len(base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        raise ValueError(hint) from None
    if not _SECRET_BYTES[0] <= size <= _SECRET_BYTES[1]:
        raise ValueError(hint)
    return text


def _different(events: list[str]) -> list[str]:
    return list(dict.fromkeys(events))


Url = Annotated[str, Field(min_length=8, max_length=MAX_URL), AfterValidator(_url)]
Secret = Annotated[str, Field(max_length=128), AfterValidator(_secret)]
Different = AfterValidator(_different)


def new_webhook_secret() -> str:
    """Return a random secret for a webhook, which the receiver verifies its deliveries with."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


class TaskWebhook(CheckedKeywords, RequestBody):
    """Send the end of a task to a URL, signed if there is a `secret`.

    `events`: which ends, by default all. Deliveries to the same URL with the same secret keep their order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Url
    events: Annotated[list[EndEvent], Field(min_length=1, max_length=8), Different] = Field(
        default_factory=lambda: list(_ENDS)
    )
    secret: Secret | None = Field(default=None, exclude_if=is_none, repr=False)


class WebhookRequest(CheckedKeywords, RequestBody):
    """Create a webhook of a room, or replace it; then it is enabled.

    - `events`: by default all ends of tasks and groups.
    - `secret`: signs each delivery; ``whsec_`` and 24 to 64 bytes as base64. Omitted, a webhook that exists
      keeps its own, and a new one sends unsigned requests. No answer has it.
    - `previous_secret_seconds`: for how long the secret that a new one replaces signs too.
    """

    model_config = ConfigDict(extra="forbid")

    url: Url
    events: Annotated[list[RoomEvent], Field(min_length=1, max_length=8), Different] = Field(
        default_factory=lambda: list(_ALL_ENDS)
    )
    secret: Secret | None = Field(default=None, exclude_if=is_none, repr=False)
    previous_secret_seconds: Annotated[float, Field(ge=0, le=30 * _DAY_SECONDS)] = _DAY_SECONDS


class WebhookResponse(ResponseBody):
    """A webhook of a room.

    - `is_signed`: whether it has a secret. `previous_secret_until`: until when the one before signs too.
    - `state`: `active`; `failing` while deliveries fail, the next attempt is at `next_attempt_at`; or
      `disabled` since `disabled_at`, for `disabled_reason`: to write it again enables it.
    - `failures`: how many attempts failed since the last success; `last_error` says why.
    - `waiting`: how many deliveries wait, counted up to 10,000.
    """

    room_id: str
    name: Name
    url: str
    events: list[str]
    is_signed: bool
    previous_secret_until: datetime | None
    created_by: str
    created_at: datetime
    updated_at: datetime
    state: Literal["active", "failing", "disabled"]
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    last_error: str | None
    next_attempt_at: datetime | None
    waiting: int


class Delivery(ResponseBody):
    """An event for a webhook. `id` numbers the deliveries; `message_id` is the header `webhook-id`.

    - `webhook`: null for that of a task's submit.
    - `state`: `waiting`, `delivered` or `failed`, since `ended_at` unless it waits.
    - `status_code`, `error`: of the last attempt; the body of the receiver's answer is not kept.
    """

    id: int
    message_id: str
    room_id: str
    webhook: str | None
    event: str
    task_id: UUID | None
    created_at: datetime
    state: Literal["waiting", "delivered", "failed"]
    attempts: int
    attempted_at: datetime | None
    ended_at: datetime | None
    status_code: int | None
    error: str | None
