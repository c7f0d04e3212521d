"""The way of every client command to its server: which URL, which token, and what is said when it fails."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import httpx
from pydantic import ValidationError

from zndraw_joblib.cli import credentials
from zndraw_joblib.cli.refusal import Misuse, Refusal
from zndraw_joblib.contract.messages import (
    MAX_PAGE,
    JobResponse,
    JobSummary,
    SweeperMode,
    SweeperPreview,
    SweeperState,
    SweeperUpdate,
    TaskActionRequest,
    TaskResponse,
    TaskUpdateRequest,
    WorkerResponse,
)
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import ProblemException, Unauthorized
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import Connection, connect
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.rest import RestApi, quoted

TOKEN_VARIABLE = "ZNDRAW_JOBLIB_TOKEN"  # noqa: S105 - the name of a variable
_MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Access:
    """A server and the token to use there; `source` says where the token is from."""

    url: str
    token: str | None = field(repr=False)
    source: str


class Client(JobClient):
    """What the commands ask of a server."""

    def cancel(self, task_id: UUID) -> TaskResponse:
        """Cancel a task."""
        return self._rest.report_task(str(task_id), TaskUpdateRequest(status=TaskStatus.CANCELLED))

    def act(self, task_id: UUID, action: str, reason: str | None = None) -> TaskResponse:
        """Release or fail a task by hand."""
        return self._rest.act_on_task(
            str(task_id), action, TaskActionRequest(error=reason) if reason else None
        )

    def drain(self, worker_id: UUID) -> WorkerResponse:
        """Ask a worker to leave."""
        return self._rest.send("POST", f"/workers/{worker_id}/drain", WorkerResponse)

    def switch(self, name: JobName, action: str) -> JobResponse:
        """Pause or resume a job."""
        path = f"/rooms/{quoted(name.room_id)}/jobs/{quoted(str(name))}/{action}"
        return self._rest.send("POST", path, JobResponse)

    def sweeper(self, mode: SweeperMode | None = None) -> SweeperState:
        """Return how the sweeper works, after it was told a mode where one is given."""
        path = "/admin/sweeper"
        if mode is None:
            return self._rest.get(path, SweeperState)
        return self._rest.send("PATCH", path, SweeperState, SweeperUpdate(mode=mode))

    def preview(self) -> SweeperPreview:
        """Return what the sweeper would do now."""
        return self._rest.get("/admin/sweeper/preview", SweeperPreview)

    def every_job(self, room: str) -> list[JobSummary]:
        """Return all jobs that a room sees."""
        found: list[JobSummary] = []
        while True:
            page = self.jobs(room, limit=MAX_PAGE, offset=len(found))
            found += page.items
            if not page.items or len(found) >= page.total:
                return found


def find(url: str) -> Access:
    """Return the token for a server: from the environment, else the one kept for this very URL."""
    place = credentials.canonical(url)
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if given:
        if not (given.isascii() and given.isprintable()):
            raise Misuse(f"The token in {TOKEN_VARIABLE} has characters that no token has")
        return Access(url.strip(), given, TOKEN_VARIABLE)
    token = credentials.kept().get(place)
    # The canonical form, so that the token goes where it was kept for, whatever localhost means here.
    return Access(place if token else url.strip(), token, str(credentials.path()))


@contextmanager
def opened(access: Access, *, realtime: bool = False) -> Iterator[Connection]:
    """Open a connection, see `connect`; what goes wrong while it is open becomes a `Refusal`."""
    try:
        with connect(access.url, access.token, realtime=realtime) as connection:
            yield connection
    except Unauthorized as problem:
        raise Refusal(_unauthorized(access, problem)) from problem
    except ProblemException as problem:
        raise Refusal(_said(access, problem)) from problem
    except httpx.TransportError as error:
        raise Refusal(
            f"The server at {access.url} cannot be reached: {_reason(error)}. Is it running? "
            "'zndraw-joblib serve' starts one; --url or ZNDRAW_JOBLIB_URL names another."
        ) from error
    except ValidationError as error:
        raise Refusal(
            f"What answers at {access.url} is not a zndraw-joblib server of this version"
        ) from error


@contextmanager
def asking(url: str) -> Iterator[Client]:
    """Open a client for one command; what goes wrong becomes a `Refusal`."""
    with opened(find(url)) as connection:
        yield Client(RestApi(connection))


def _unauthorized(access: Access, problem: ProblemException) -> str:
    if access.token is None:
        return (
            f"The server at {access.url} wants a token, and {access.source} has none for this URL: "
            f"set {TOKEN_VARIABLE}. Its operator makes one with 'zndraw-joblib token create NAME'."
        )
    return f"The server at {access.url} refused the token from {access.source}: {problem}"


def _said(access: Access, problem: ProblemException) -> str:
    detail = str(problem)[:_MAX_DETAIL]
    if problem.problem.type == "about:blank":
        return f"The server at {access.url} answered {problem.problem.status}: {detail}"
    return detail


def _reason(error: httpx.TransportError) -> str:
    text = str(error) or type(error).__name__
    return text.split("] ", 1)[-1] if text.startswith("[Errno") else text
