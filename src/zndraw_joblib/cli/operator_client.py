"""The requests of operators: searches, bulk actions, ids by prefix, overviews, the audit trail."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from zndraw_joblib.cli.errors import CommandError, MissingOperation
from zndraw_joblib.cli.ids import whole_id
from zndraw_joblib.client.api import ApiManager
from zndraw_joblib.client.calls import Call, reading
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.responses import UnexpectedResponse
from zndraw_joblib.client.retry import is_missing
from zndraw_joblib.contract.names import DEFAULT_ROOM
from zndraw_joblib.contract.operations import (
    AuditEntry,
    AuditTrail,
    JobEntries,
    JobEntry,
    Overview,
    Settings,
    Version,
    WorkerDetail,
)
from zndraw_joblib.contract.problems import Forbidden, MethodNotAllowed, NotFound
from zndraw_joblib.contract.searches import (
    BulkAction,
    BulkPreview,
    BulkPreviewRequest,
    BulkRequest,
    BulkResult,
    FoundTask,
    FoundTasks,
    PrefixMatches,
    TaskFilter,
)

MAX_PART = 200
_SEARCH_SECONDS = 60.0


class OperatorClient(JobClient):
    """A client with the requests of operators. An older server, which lacks one, raises `CommandError`."""

    @property
    def connection(self) -> ApiManager:
        """The connection to the server."""
        return self._rest.api

    def search(self, wanted: TaskFilter, limit: int) -> tuple[list[FoundTask], bool]:
        """Return the newest tasks that match, up to `limit`, and whether there may be more.

        A search that finds few of many tasks ends after a minute.
        """
        deadline = time.monotonic() + _SEARCH_SECONDS
        found: list[FoundTask] = []
        query = wanted.model_dump(mode="json", exclude_defaults=True)
        cursor: str | None = None
        while True:
            with _new("searches for tasks"):
                part = self._rest.get(
                    "/tasks", FoundTasks, **query, limit=min(MAX_PART, limit - len(found)), cursor=cursor
                )
            found += part.items
            cursor = part.next
            if cursor is None or len(found) >= limit or time.monotonic() > deadline:
                return found, cursor is not None

    def preview_bulk(self, action: BulkAction, wanted: TaskFilter) -> BulkPreview:
        """Return how many tasks an action would change, and the token that confirms it."""
        request = BulkPreviewRequest(action=action, filter=wanted)
        with _new("actions on several tasks"):
            return self._rest.send("POST", "/tasks/bulk/preview", BulkPreview, request)

    def apply_bulk(self, preview: BulkPreview, wanted: TaskFilter) -> BulkResult:
        """Apply an action to the tasks that its preview has counted."""
        request = BulkRequest(action=preview.action, filter=wanted, token=preview.token)

        def call(key: str) -> Call[BulkResult]:
            return Call("POST", "/tasks/bulk", reading(BulkResult), request, key=key)

        return self._send_once(f"Bulk action {preview.action}", call)

    def find_task(self, text: str) -> UUID:
        """Return the id of the task that begins with `text`. Raises `CommandError`."""
        return whole_id(text) or self._find("task", text)

    def find_worker(self, text: str) -> UUID:
        """Return the id of the worker that begins with `text`. Raises `CommandError`."""
        return whole_id(text) or self._find("worker", text)

    def overview(self) -> Overview:
        """Return the state of the queue."""
        with _new("the overview"):
            return self._rest.get("/overview", Overview)

    def audit(self, limit: int, **query: Any) -> list[AuditEntry]:
        """Return the newest actions of operators."""
        found: list[AuditEntry] = []
        cursor: str | None = None
        while True:
            size = min(MAX_PART, limit - len(found))
            with _new("the audit trail"):
                part = self._rest.get("/audit", AuditTrail, **query, limit=size, cursor=cursor)
            found += part.items
            cursor = part.next
            if cursor is None or len(found) >= limit:
                return found

    def all_job_entries(self, most: int | None = None) -> list[JobEntry]:
        """Return the jobs of all rooms with their counts, by full name; about `most` of them."""
        found: list[JobEntry] = []
        cursor: str | None = None
        while True:
            with _new("the list of all jobs"):
                part = self._rest.get("/jobs", JobEntries, limit=MAX_PART, cursor=cursor)
            found += part.items
            cursor = part.next
            if cursor is None or (most is not None and len(found) >= most):
                return found

    def settings(self) -> Settings:
        """Return the settings in force of the server that responds."""
        with _new("settings"):
            return self._rest.get("/admin/settings", Settings)

    def version(self) -> Version:
        """Return the release of the server that responds."""
        with _new("its version"):
            return self._rest.get("/version", Version)

    def worker_detail(self, worker_id: UUID) -> WorkerDetail:
        """Return a worker with its tasks."""
        with _new("details of workers"):
            return self._rest.get(f"/workers/{worker_id}", WorkerDetail)

    def _find(self, what: str, prefix: str) -> UUID:
        with _new("ids by prefix", "Pass the whole id"):
            try:
                found, where = self._rest.get("/ids", PrefixMatches, prefix=prefix), ""
            except Forbidden:
                # Only a superuser may search all rooms.
                found = self._rest.get("/ids", PrefixMatches, prefix=prefix, room=DEFAULT_ROOM)
                where = f" in room {DEFAULT_ROOM!r}"
        ids = found.tasks if what == "task" else found.workers
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise CommandError(
                f"{prefix!r} is ambiguous: {', '.join(map(str, ids))} begin with it. Pass more of the id"
            )
        raise CommandError(f"There is no {what}{where} whose id begins with {prefix!r}. Pass the whole id")


@contextmanager
def _new(what: str, remedy: str = "Upgrade the server") -> Iterator[None]:
    """Explain that an older server lacks something that this release has."""
    try:
        yield
    except (UnexpectedResponse, NotFound, MethodNotAllowed) as error:
        if type(error) in {UnexpectedResponse, NotFound, MethodNotAllowed} and is_missing(error):
            raise MissingOperation(f"The server is an older release, without {what}. {remedy}") from error
        raise
