"""Batch jobs of Slurm by its REST API, for machines without Slurm's programs and munge."""

import asyncio
import base64
import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from zndraw_joblib.client.connection import is_loopback
from zndraw_joblib.worker.launchers import LauncherError
from zndraw_joblib.worker.slurm import OVER, BatchJob, ListedJob, end_text
from zndraw_joblib.worker.slurm_options import job_fields

TOKEN_VARIABLE = "SLURM_JWT"  # noqa: S105 - the name of a variable
VERSIONS = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41")
_RELEASES = "Slurm 24.05 to 26.05"
_REQUEST_SECONDS = 60.0
# The list of all jobs of the cluster, with about 9 kB for each.
_MAX_ANSWER = 256 * 1024 * 1024
_MAX_NUMBERS = 200
_MAX_REASON = 300
_NO_RIGHTS, _BAD_TOKEN = 401, 511
# Flags that say more than the state before them, as `squeue` shows them.
_FLAGS = ("COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# Unknown, already over, or in another state than the one that is asked for.
_NOT_IN_THIS_STATE = {0, 2017, 2021, 2172}


class SlurmToken(NamedTuple):
    """The JSON Web Token for Slurm: in a file, which is read for each request, or in `SLURM_JWT`."""

    path: Path | None = None

    @property
    def source(self) -> str:
        """Where the token is."""
        return TOKEN_VARIABLE if self.path is None else str(self.path)

    def read(self) -> str:
        """Return the token. Raises `LauncherError`."""
        try:
            text = os.environ.get(TOKEN_VARIABLE, "") if self.path is None else self.path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise LauncherError(f"The token for Slurm cannot be read: {error}") from error
        # `scontrol token` prints it as an assignment.
        token = text.strip().removeprefix(f"{TOKEN_VARIABLE}=")
        if not (token and token.isascii() and token.isprintable()):
            raise LauncherError(
                f"{self.source} has no token for Slurm: put the one of 'scontrol token' there"
            )
        return token

    def claims(self) -> Mapping[str, Any]:
        """Return what the token says, unverified; nothing if it cannot be read."""
        try:
            _, payload, _ = self.read().split(".")
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (LauncherError, ValueError):
            return {}
        return claims if isinstance(claims, dict) else {}

    def user(self) -> str:
        """Return the user of the token. Raises `LauncherError`."""
        if isinstance(user := self.claims().get("sun"), str):
            return user
        raise LauncherError(
            f"The token in {self.source} names no user (claim sun), whose batch jobs are counted: put one of "
            "'scontrol token' there"
        )

    def explained(self) -> str:
        """Return why Slurm may refuse the token, and what to do."""
        end = self.claims().get("exp")
        remedy = f"put another one, of 'scontrol token lifespan=SECONDS', into {self.source}"
        if self.path is None:
            remedy += ", and start the command again"
        if isinstance(end, int | float) and end <= time.time():
            at = datetime.fromtimestamp(end, UTC).isoformat(" ", "seconds")
            return f"The token in {self.source} has expired at {at}: {remedy}"
        return f"Slurm refuses the token in {self.source}: {remedy}"


class SlurmRest:
    """Submits by slurmrestd, with the options of sbatch that have a field there.

    Batch jobs run in `--chdir`, by default a folder like the working directory of this process. They get a
    login shell's environment, and the variables of workers. What they print is in files of `folder`, which is
    a path on the nodes. Raises ValueError for an option without a field, and for a wrong URL.
    """

    def __init__(
        self,
        url: str,
        options: Sequence[str] = (),
        folder: Path | None = None,
        token: SlurmToken | None = None,
        versions: Sequence[str] = VERSIONS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("the URL of slurmrestd must be like http://host:6820")
        if parts.username is not None or parts.query:
            raise ValueError(
                f"the URL of slurmrestd has no user and no query: the token is in {TOKEN_VARIABLE}"
            )
        self._url, self._options, self._token = url.rstrip("/"), list(options), token or SlurmToken()
        self._is_remote = not is_loopback(parts.hostname)
        self._fields = {"current_working_directory": str(Path.cwd()), **job_fields(options)}
        self._folder = Path(self._fields["current_working_directory"]) / (folder or "")
        self._versions, self._version = list(versions), ""
        self._lost: set[str] = set()

    @property
    def about(self) -> str:
        """The URL and the options."""
        return " ".join([f"slurmrestd at {self._url}", shlex.join(self._options)]).rstrip()

    async def check(self, job: BatchJob) -> None:
        """Submit a batch job that does nothing, and cancel it. Slurm checks less of one that is on hold."""
        self._token.user()
        number = await self._post(job._replace(command=["true"]), standard_output="/dev/null")
        try:
            await self._signal(number, "PENDING", "KILL")
        except LauncherError as error:
            raise LauncherError(
                f"Batch job {number}, which does nothing, is not cancelled: {error}"
            ) from error

    async def submit(self, job: BatchJob) -> str:
        """Submit a batch job, and return its number. It ends those whose submission got no answer."""
        if self._lost:
            for listed in await self.own_jobs():
                if listed.name in self._lost:
                    await self.drain(listed.id)
            self._lost.clear()
        try:
            return await self._post(job)
        except _NoAnswer:
            self._lost.add(job.name)
            raise

    async def _post(self, job: BatchJob, **fields: object) -> str:
        # The variables of this process are of another machine. A login shell sets those of the user.
        command = f"exec {shlex.join(job.command)}"
        script = f"#!/bin/bash\nexport HOME=~\nexec bash -lc {shlex.quote(command)}\n"
        fields = {
            "name": job.name,
            "standard_output": str(self.output_of(job.name)),
            "requeue": False,
        } | fields
        environment = [f"{name}={value}" for name, value in job.environment.items()]
        body = {"script": script, "job": {**self._fields, **fields, "environment": environment}}
        return str((await self._send("POST", "job/submit", body))["job_id"])

    async def own_jobs(self) -> Iterable[ListedJob]:
        """Return the batch jobs of the token's user. Slurm lists those of all users."""
        user = self._token.user()
        jobs = (await self._send("GET", "jobs/"))["jobs"]
        listed = [
            ListedJob(str(job["job_id"]), _state(job["job_state"]), job["name"])
            for job in jobs
            if job["user_name"] == user
        ]
        return [job for job in listed if job.state not in OVER]

    async def states(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Return the states of batch jobs."""
        states: dict[str, str] = {}
        numbers = list(names)
        for start in range(0, len(numbers), _MAX_NUMBERS):
            query = "&".join(f"job_id={number}" for number in numbers[start : start + _MAX_NUMBERS])
            answer = await self._send("GET", f"jobs/state/?{query}")
            states |= {str(job["job_id"]): _state(job["state"]) for job in answer["jobs"]}
        return states

    async def end_of(self, number: str) -> str:
        """Return the last state and the exit code of a batch job."""
        [job] = (await self._send("GET", f"job/{number}"))["jobs"]
        code = job["exit_code"]
        return end_text(
            _state(job["job_state"]), code["return_code"]["number"], code["signal"]["id"]["number"]
        )

    async def drain(self, number: str) -> None:
        """Cancel a batch job that waits; send SIGTERM to the workers of one that runs."""
        await self._signal(number, "PENDING", "KILL")
        await self._signal(number, "RUNNING", "TERM", "BATCH_JOB")

    async def _signal(self, number: str, state: str, signal: str, *flags: str) -> None:
        """Send a signal to a batch job of this user, if it has this state then."""
        # Slurm 24.11 and 26.05 hang after such a request for a job of another user without its name here.
        filters = {"job_state": [state], "user_name": self._token.user()}
        body = {"jobs": [number], "signal": signal, "flags": flags, **filters}
        for status in (await self._send("DELETE", "jobs/", body))["status"]:
            if status["error"]["code"] not in _NOT_IN_THIS_STATE:
                raise LauncherError(f"Batch job {number}: {status['error']['string']}")

    def output_of(self, name: str) -> Path:
        """Return the file with the output of a batch job, on the nodes."""
        return self._folder / f"{name}.out"

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._version = self._version or await self._find_version()
        status, answer = await self._request(method, self._version, path, body)
        if status == 404 and "text" in answer:
            # Another release may have been started.
            self._version = ""
        return self._checked(status, answer)

    async def _find_version(self) -> str:
        """Return the newest version of the API that both sides have, with states of jobs."""
        for version in self._versions:
            status, answer = await self._request("GET", version, "jobs/state/?job_id=1")
            if status != 404:
                self._checked(status, answer)
                return version
        raise LauncherError(
            f"slurmrestd at {self._url} has none of the supported versions of its API: "
            f"{', '.join(self._versions)} ({_RELEASES}). Submit by sbatch there"
        )

    async def _request(
        self, method: str, version: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of an answer; of another answer its text as an error."""
        import httpx  # noqa: PLC0415 - see `client.connection`

        content, length, url = [], 0, f"{self._url}/slurm/{version}/{path}"
        headers = {"X-SLURM-USER-TOKEN": self._token.read()}
        try:
            async with (
                asyncio.timeout(_REQUEST_SECONDS),
                httpx.AsyncClient(timeout=_REQUEST_SECONDS, trust_env=self._is_remote) as client,
                client.stream(method, url, headers=headers, json=body) as response,
            ):
                async for chunk in response.aiter_bytes():
                    content.append(chunk)
                    length += len(chunk)
                    if length > _MAX_ANSWER:
                        raise LauncherError(
                            f"slurmrestd answers {path} with more than {_MAX_ANSWER >> 20} MiB"
                        )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise LauncherError(f"slurmrestd at {self._url} cannot be reached: {error}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise _NoAnswer(f"slurmrestd at {self._url} gives no answer: {error or repr(error)}") from error
        text = b"".join(content)
        try:
            answer = json.loads(text)
        except ValueError:
            return response.status_code, {"text": text[:_MAX_REASON].decode(errors="replace").strip()}
        return response.status_code, answer if isinstance(answer, dict) else {}

    def _checked(self, status: int, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer. Raises `LauncherError` with the reason of Slurm if it is an error."""
        if status in {_NO_RIGHTS, _BAD_TOKEN}:
            raise LauncherError(self._token.explained())
        errors = answer.get("errors") or ()
        if status == 200 and not errors and "text" not in answer:
            return answer
        if not errors:
            text = answer.get("text") or "no reason"
            kind = _NoAnswer if status >= 500 else LauncherError
            raise kind(f"slurmrestd at {self._url} answers with status {status}: {text}")
        first = errors[0]
        words = [str(first[name]) for name in ("description", "error") if first.get(name)]
        raise LauncherError(": ".join(words)[:_MAX_REASON] or f"slurmrestd answers with status {status}")


class _NoAnswer(LauncherError):
    """Slurm may have done what was asked for."""


def _state(states: Sequence[str]) -> str:
    """Return the one of the words for a state that `squeue` shows."""
    return next((word for word in _FLAGS if word in states), states[0])
