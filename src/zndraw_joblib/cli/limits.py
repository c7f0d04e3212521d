"""The commands for limits that jobs share: limits, put, delete."""

from typing import Annotated

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import ItemTable, UsageError, print_note
from zndraw_joblib.cli.options import AsJson, Url, refuse_options_before
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.operators import LimitEntry
from zndraw_joblib.wire.policy import LimitValues, Rate


def _rate(limit: LimitEntry) -> str | None:
    rate = limit.rate
    if rate is None:
        return None
    burst = f", burst {rate.burst}" if rate.burst > 1 else ""
    return f"{rate.count} in {rate.per_seconds:g} s{burst}"


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
    int | None, typer.Option("--rate", metavar="N", min=1, help="How many tasks may start in --per seconds.")
]
Per = Annotated[float, typer.Option("--per", metavar="SECONDS", help="The period of --rate.")]
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
    _LIMITS.print(items, caption=f"{len(items):,} limits", as_json=as_json)


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
    """Define a limit, or change one.

    For example: limits put api --rate 100 --per 60
    """
    if max_in_flight is None and rate is None:
        raise UsageError("Pass --max-in-flight, or --rate, or both")
    values = LimitValues(
        max_in_flight=max_in_flight,
        rate=None if rate is None else Rate(count=rate, per_seconds=per, burst=burst),
    )
    with open_client(url) as client:
        _LIMITS.print_one(client.post(ops.PUT_LIMIT, values, limit=name), as_json=as_json)


@app.command()
def delete(name: Name, *, url: Url = DEFAULT_URL) -> None:
    """Delete a limit that no job has."""
    with open_client(url) as client:
        client.delete(ops.DELETE_LIMIT, f"Deleting limit {name}", limit=name)
    print_note(f"Limit {name} is deleted.")
