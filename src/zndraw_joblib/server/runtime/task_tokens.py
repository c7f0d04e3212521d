"""Tokens of tasks in one server process: the key is read once, and each use of a token reads its task."""

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

from zndraw_joblib.server.process.ports import Identity, UploadKey
from zndraw_joblib.server.queue import rules_task_tokens
from zndraw_joblib.wire.messages import MAX_TASK_TOKEN_SECONDS, NamedTask, TaskResponse, TaskVerdict, Verdict

Work = Callable[..., Awaitable[Any]]


class TaskTokens:
    """Issues and checks tokens. `read` and `write` run short work in a transaction; `now` is a test clock."""

    def __init__(self, read: Work, write: Work, now: Callable[[], float] | None = None) -> None:
        self._read, self._write, self._own_time = read, write, now
        # Whether each user but the admin and those of an identity provider has a row with its rights.
        self.has_stored_users = False
        self._key: bytes | None = None

    async def _read_key(self) -> bytes:
        if self._key is None:
            key = await self._read(rules_task_tokens.read_key)
            self._key = (key or await self._write(rules_task_tokens.make_key)).encode()
        return self._key

    async def add(self, caller: Identity, tasks: Iterable[TaskResponse], seconds: int | None = None) -> None:
        """Give each of these tasks, which the caller has claimed now, its token, valid for `seconds`."""
        key, expires_at = self._key or await self._read_key(), self._expiry(seconds)
        jobs = rules_task_tokens.packed_jobs(caller.jobs)
        for task in tasks:
            task.token = rules_task_tokens.sign(key, task.id, task.attempt, expires_at, jobs)

    async def renew(self, caller: Identity, verdicts: Iterable[tuple[NamedTask, TaskVerdict]]) -> None:
        """Give each of these tasks, which the caller's worker still holds, a new token."""
        key, expires_at = self._key or await self._read_key(), self._expiry()
        jobs = rules_task_tokens.packed_jobs(caller.jobs)
        for task, verdict in verdicts:
            if verdict.verdict == Verdict.CONTINUE:
                verdict.token = rules_task_tokens.sign(key, task.id, task.attempt, expires_at, jobs)

    async def issue_for_executor(self, task_id: UUID, attempt: int) -> str:
        """Return a token of a task that waits in a broker. No heartbeat renews it: it is valid for a day."""
        key = self._key or await self._read_key()
        return rules_task_tokens.sign(key, task_id, attempt, self._expiry(MAX_TASK_TOKEN_SECONDS))

    async def issue_for_request(self, provider_id: UUID, request_hash: str) -> str:
        """Return a token of a request to an internal provider that waits in a broker, for a day too."""
        key = self._key or await self._read_key()
        expires_at = self._expiry(MAX_TASK_TOKEN_SECONDS)
        return rules_task_tokens.sign_upload(key, UploadKey(provider_id, request_hash), expires_at)

    async def identify(self, token: str) -> Identity:
        """Return the identity of the code that has a token. Raises `Unauthorized`."""
        key = self._key or await self._read_key()
        about = rules_task_tokens.verify(key, token, self._now())
        identity: Identity = await self._read(
            rules_task_tokens.identify, about, has_stored_users=self.has_stored_users
        )
        return identity

    def _now(self) -> float:
        return time.time() if self._own_time is None else self._own_time()

    def _expiry(self, seconds: int | None = None) -> int:
        return int(self._now()) + (seconds or rules_task_tokens.TOKEN_SECONDS)
