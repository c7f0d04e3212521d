"""A chain on procrastinate, which has no successors: each job defers the next one as its last action."""

import asyncio
import sys

import procrastinate
from common import URL
from marks import mark_times

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=16))


@app.task(name="step")
async def step(number: int, last: int) -> None:
    """Write when it ran, and defer the next job."""
    mark_times(number)
    if number < last:
        await step.defer_async(number=number + 1, last=last)


async def main(kind: str, first: int, count: int) -> None:
    """Create the tables, or begin a chain."""
    async with app.open_async():
        if kind == "setup":
            await app.schema_manager.apply_schema_async()
        else:
            await step.defer_async(number=first, last=first + count - 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:] or (0, 0))))
