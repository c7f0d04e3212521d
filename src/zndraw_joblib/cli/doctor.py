"""The command doctor: check a server, its database and its machine, each with a remedy."""

import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urljoin

import typer

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import (
    CheckResult,
    CommandError,
    MissingOperation,
    State,
    counted,
    failed,
    format_duration,
    passed,
    print_checks,
    print_json,
    skipped,
    warned,
)
from zndraw_joblib.cli.options import AsJson, DatabaseUrl, Url
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import SweeperMode, SweeperState
from zndraw_joblib.wire.operators import Severity
from zndraw_joblib.wire.problems import Forbidden, NotFound

_MAX_SKEW_SECONDS = 5.0
_REDIS = "redis"
_DATABASE_DOWN = "Database unavailable"
_SET_CLOCK = "Synchronise the clocks of all machines with NTP (chrony, systemd-timesyncd)"
_SILENT_CYCLES = 3


class Clocks(NamedTuple):
    """How far other clocks are ahead of this machine's, in seconds; None if unknown."""

    server: float | None = None
    database: float | None = None


def doctor(*, database_url: DatabaseUrl = None, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Check a server, its database and this machine.

    Each line is a check with its remedy. The checks of settings, database, Redis and disk run where the
    server's settings are. The exit code is 1 if a check fails.
    """
    local, database_clock = _local_checks(database_url)
    remote, clocks = _server_checks(url)
    if any(check.name == _REDIS for check in remote):
        local = [check for check in local if (check.name, check.state) != (_REDIS, State.SKIPPED)]
    ahead = clocks.database if database_clock is None else database_clock
    checks = [*remote, *local, *check_clocks(Clocks(clocks.server, ahead))]
    print_json(checks) if as_json else print_checks(checks)
    if any(check.state == State.FAILED for check in checks):
        raise typer.Exit(1)


def _local_checks(database_url: str | None) -> tuple[list[CheckResult], float | None]:
    try:
        from zndraw_joblib.cli.server import doctor as local  # noqa: PLC0415 - a worker's install has no server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zndraw_joblib"):
            raise
        detail = "The server is not installed here: settings, database, Redis and disk were not checked"
        return [skipped("database", f"{detail}; run doctor on its machine too")], None
    return local.run(database_url)


def _server_checks(url: str) -> tuple[list[CheckResult], Clocks]:
    try:
        with open_client(url) as client:
            server, clock = _check_server(client, url)
            queue = list(_check_queue(client))
            database = _database_clock(client)
    except CommandError as error:
        return [check_error(error.format_message())], Clocks()
    return [server, *queue], Clocks(clock, database)


def check_error(message: str) -> CheckResult:
    """Return the check of a server whose first response was this error, or that gave none."""
    text, _, remedy = message.partition(". ")
    if text.startswith(_DATABASE_DOWN):
        remedy = "The server runs, but not its database: start it, or repair the connection to it"
    return failed("server", text, remedy or "Start it with 'zndraw-joblib serve', or set --url")


def _check_server(client: AdminClient, url: str) -> tuple[CheckResult, float | None]:
    """Check that the server answers, with the token; return how far its clock is ahead too."""
    started = time.monotonic()
    client.workers(limit=1)
    took = timedelta(seconds=time.monotonic() - started)
    detail = f"{url} answers in {format_duration(took)}"
    try:
        version = client.read(ops.GET_VERSION, "its version")
    except MissingOperation:
        detail += ", an older release"
    else:
        detail += f", version {version.version}, schema {version.schema_version}"
    return passed("server", detail), _server_clock(client)


def _server_clock(client: AdminClient) -> float | None:
    """Return how far the server's clock is ahead; its Date header has whole seconds."""
    api = client.connection
    before = datetime.now(UTC)
    response = api.http.get(
        f"{api.base_url}{ops.PREFIX}{ops.LIST_WORKERS.path()}?limit=1", headers=api.get_headers()
    )
    after = datetime.now(UTC)
    try:
        answered = parsedate_to_datetime(response.headers["Date"]).astimezone(UTC)
    except (KeyError, ValueError):
        return None
    # The server's time is in [answered, answered + 1 s); it is ahead by what no moment in between explains.
    too_late = (answered - after).total_seconds()
    too_early = (answered + timedelta(seconds=1) - before).total_seconds()
    return max(0.0, too_late) or min(0.0, too_early)


def _database_clock(client: AdminClient) -> float | None:
    before = datetime.now(UTC)
    try:
        at = client.read(ops.GET_OVERVIEW, "the overview").at
    except (CommandError, Forbidden):
        return None
    # It is ahead by what no moment of the request explains.
    return max(at - datetime.now(UTC), min(timedelta(), at - before)).total_seconds()


def check_clocks(clocks: Clocks) -> Iterator[CheckResult]:
    """Check that the clocks of the server and of the database are near this machine's."""
    clocks_ahead = {
        name: ahead
        for name, ahead in (("server", clocks.server), ("database", clocks.database))
        if ahead is not None
    }
    if not clocks_ahead:
        yield skipped("clocks", "No other clock is known: neither server nor database has said its time")
        return
    wrong = {name: ahead for name, ahead in clocks_ahead.items() if abs(ahead) > _MAX_SKEW_SECONDS}
    for name, ahead in wrong.items():
        how = "ahead of" if ahead > 0 else "behind"
        detail = f"The clock of the {name} is {abs(ahead):,.0f} s {how} this machine's"
        yield warned("clocks", detail, _SET_CLOCK)
    if not wrong:
        difference = math.ceil(max(map(abs, clocks_ahead.values()), default=0.0))
        names = " and ".join(clocks_ahead)
        yield passed("clocks", f"This machine and the {names} differ by {max(1, difference)} s at most")


def _check_queue(client: AdminClient) -> Iterator[CheckResult]:
    checks: dict[str, Callable[[AdminClient], Iterator[CheckResult]]] = {
        "ready": _check_ready,
        "sweeper": _check_sweeper,
        "queue": _check_findings,
    }
    for name, check in checks.items():
        try:
            yield from check(client)
        except Forbidden:
            yield skipped(name, "Only the token of a superuser or an operator of all rooms may see it")
        except (MissingOperation, NotFound):
            yield skipped(name, "The server is an older release without this check")


def _check_ready(client: AdminClient) -> Iterator[CheckResult]:
    """Check what the server finds in itself; it needs no token."""
    api = client.connection
    response = api.http.get(urljoin(api.base_url, "/health/ready"))
    try:
        checks: dict[str, str] = response.json()["checks"]
    except (ValueError, LookupError, TypeError):
        yield skipped("ready", f"The server has no /health/ready at this URL: status {response.status_code}")
        return
    redis = checks.pop(_REDIS, None)
    for reason in (text for text in checks.values() if text != "ok"):
        yield failed("ready", reason, "Look into the server's log; other servers take the requests meanwhile")
    if redis not in {None, "ok"}:
        yield failed(_REDIS, f"Redis is {redis}", "Start Redis or Valkey; the server finds it by itself")
    elif redis:
        yield passed(_REDIS, "Redis answers the server")
    if all(text == "ok" for text in checks.values()):
        yield passed("ready", "The server takes requests and writes to its database")


def _check_sweeper(client: AdminClient) -> Iterator[CheckResult]:
    state = client.sweeper()
    if state.mode != SweeperMode.ENFORCE:
        detail = f"The sweeper's mode is {state.mode}: workers that stop are not removed"
        yield warned("sweeper", detail, "'zndraw-joblib sweeper --mode enforce' lets it act")
        return
    last = state.cycles[0] if state.cycles else None
    if last is None:
        yield _first_cycle(state)
        return
    ago = datetime.now(UTC) - last.at
    detail = f"The last cycle was {format_duration(max(ago, timedelta()))} ago"
    if ago.total_seconds() > max(_SILENT_CYCLES * state.interval_seconds, _MAX_SKEW_SECONDS):
        yield failed("sweeper", detail, "Look into the server's log, and restart the server")
    elif last.errors:
        yield warned("sweeper", f"{detail}, with {last.errors} errors", "Look into the server's log")
    elif last.held_back:
        yield warned(
            "sweeper",
            f"{detail}, and was held back: most workers would have expired at once",
            "Check the network between workers and server; 'zndraw-joblib sweeper --preview' lists them",
        )
    else:
        yield passed("sweeper", detail)


def _first_cycle(state: SweeperState) -> CheckResult:
    detail = f"No cycle yet: the server started less than {state.interval_seconds:g} s ago"
    if state.grace_remaining_seconds > 0:
        return passed("sweeper", detail)
    return warned("sweeper", "The sweeper of this server has no cycle yet", "Run doctor again in a minute")


def _check_findings(client: AdminClient) -> Iterator[CheckResult]:
    overview = client.read(ops.GET_OVERVIEW, "the overview")
    if not overview.findings:
        counts = overview.counts
        waiting, running = f"{counted(overview.queued, 'task')} waiting", f"{counts.running:,} running"
        yield passed("queue", f"{waiting}, {running}, {counted(sum(overview.workers.values()), 'worker')}")
    for finding in overview.findings:
        detail = f"{finding.detail} [{finding.code}]"
        if finding.severity is Severity.INFO:
            yield passed("queue", detail)
            continue
        make = failed if finding.severity is Severity.CRITICAL else warned
        yield make("queue", detail, finding.remedy)
