"""Procrastinate on PostgreSQL, with psycopg and its pool."""

import procrastinate
from common import URL, main, mark

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=16))


@app.task(name="work")
async def work() -> None:
    """Do nothing."""
    mark()


async def setup() -> None:
    """Create the tables."""
    await app.schema_manager.apply_schema_async()


async def enqueue_many(count: int) -> None:
    """Defer tasks in one statement."""
    await work.batch_defer_async(*[{}] * count)


async def enqueue() -> None:
    """Defer a task."""
    await work.defer_async()


if __name__ == "__main__":
    main(enqueue, enqueue_many, setup=setup, opened=app.open_async)
