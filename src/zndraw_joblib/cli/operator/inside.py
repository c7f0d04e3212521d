"""Run internal tasks in a process of its own, until a signal ends it."""

import asyncio
import os
import signal
import sys

from taskiq.receiver import Receiver

from zndraw_joblib.cli.operator import configuration, database
from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.server.internal.brokers import QueueBroker
from zndraw_joblib.server.internal.extensions import CannotLoad
from zndraw_joblib.server.internal.setup import worker_broker
from zndraw_joblib.server.store import schema


def run(database_url: str | None, concurrency: int | None) -> None:
    """Run internal tasks until SIGINT or SIGTERM. Those that run then are run to their ends.

    A second signal ends all at once. Raises `Refusal`.
    """
    settings = configuration.read(database_url, internal_concurrency=concurrency)
    if database.is_sqlite(settings.database_url):
        raise Misuse(
            "SQLite is for one server process, which runs internal tasks itself: internal-worker needs "
            "--database-url postgresql://user:password@host/name (or ZNDRAW_JOBLIB_DATABASE_URL)"
        )
    try:
        broker = worker_broker(settings)
    except CannotLoad as error:
        raise Misuse(str(error)) from error
    database.run(settings.database_url, schema.prepare)
    sys.stderr.write(
        f"internal tasks run here, {settings.internal_concurrency} at once, from "
        f"{database.describe(settings.database_url)}  (Ctrl-C lets those that run end)\n"
    )
    asyncio.run(_work(broker, settings.internal_concurrency))


async def _work(broker: QueueBroker, concurrency: int) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    broker.is_worker_process = True
    receiver = Receiver(broker, max_async_tasks=concurrency)
    try:
        await receiver.listen(stopping)
    finally:
        await broker.shutdown()
