"""The commands for limits that jobs share: limits, put, delete."""

from typing import Annotated

import typer

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import ItemTable, UsageError, counted, print_note
from zndraw_joblib.cli.options import AsJson, Url, refuse_options_before
from zndraw_joblib.cli.times import parse_duration
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.operators import LimitEntry
from zndraw_joblib.wire.policy import JobLimit, LimitValues, Rate
from zndraw_joblib.wire.problems import LimitNotFound


def _rate(limit: LimitEntry) -> str | None:
    return None if limit.rate is None else rate_text(limit.rate)


def rate_text(rate: Rate) -> str:
    """Return a rate like "100 in 60 s, burst 20"."""
    burst = f", burst {rate.burst}" if rate.burst > 1 else ""
    return f"{rate.count} in {rate.per_seconds:g} s{burst}"


def limit_text(limit: JobLimit) -> str:
    """Return a limit of a job like "max_in_flight 2 per room", or with its name."""
    key = "" if limit.key is None else f" per {limit.key}"
    if limit.name is not None:
        return f"{limit.name}{key}"
    slots = "" if limit.max_in_flight is None else f"max_in_flight {limit.max_in_flight}"
    rate = "" if limit.rate is None else f"rate {rate_text(limit.rate)}"
    return f"{' and '.join(filter(None, (slots, rate)))}{key}"


_LIMITS = ItemTable(
    {"limit": "name", "at once": "max_in_flight", "rate": _rate, "changed": "updated_at", "by": "updated_by"},
    wide=["limit", "by"],
    optional=["at once", "rate"],
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit.")]
InFlight = Annotated[
    int | None, typer.Option("--max-in-flight", metavar="N", min=1, help="How many tasks may run at once.")
]
Count = Annotated[
    int | None, typer.Option("--rate", metavar="N", min=1, help="How many tasks may start in the time --per.")
]
Per = Annotated[
    float,
    typer.Option(
        "--per",
        metavar="DURATION",
        parser=parse_duration,
        help="The time of --rate: seconds, or like 1m, 1h.",
    ),
]
Burst = Annotated[
    int, typer.Option("--burst", metavar="N", min=1, help="How many may start at once after a pause.")
]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def limits(context: typer.Context, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the limits that jobs share, or change one."""
    if refuse_options_before(context):
        return
    with open_client(url) as client:
        items: list[LimitEntry] = []
        while True:
            query = {"limit": MAX_PAGE, "offset": len(items)}
            page = client.read(ops.LIST_LIMITS, "the list of limits", query=query)
            items += page.items
            if not page.items or len(items) >= page.total:
                break
    _LIMITS.print(items, caption=counted(len(items), "limit"), as_json=as_json)


@app.command()
def put(  # noqa: PLR0913 - each is an option
    name: Name,
    *,
    max_in_flight: InFlight = None,
    rate: Count = None,
    per: Per = 1.0,
    burst: Burst = 1,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Define a limit, or replace one: it has only what the options say.

    For example: limits put api --rate 100 --per 1m
    """
    if max_in_flight is None and rate is None:
        raise UsageError("Pass --max-in-flight, or --rate, or both")
    values = LimitValues(
        max_in_flight=max_in_flight,
        rate=None if rate is None else Rate(count=rate, per_seconds=per, burst=burst),
    )
    with open_client(url) as client:
        removed = _removed(client, name, values)
        _LIMITS.print_one(client.post(ops.PUT_LIMIT, values, limit=name), as_json=as_json)
    if removed:
        print_note(f"The limit had {removed} besides, which the options did not name: it is removed.")


def _removed(client: AdminClient, name: str, values: LimitValues) -> str | None:
    """Return which value of a limit the new values do not have."""
    try:
        before = client.read(ops.GET_LIMIT, f"limit {name}", limit=name)
    except LimitNotFound:
        return None
    if before.rate is not None and values.rate is None:
        return f"a rate of {rate_text(before.rate)}"
    has_slots = before.max_in_flight is not None and values.max_in_flight is None
    return f"--max-in-flight {before.max_in_flight}" if has_slots else None


@app.command()
def delete(name: Name, *, url: Url = DEFAULT_URL) -> None:
    """Delete a limit that no job has."""
    with open_client(url) as client:
        client.delete(ops.DELETE_LIMIT, f"Deleting limit {name}", limit=name)
    print_note(f"Limit {name} is deleted.")
