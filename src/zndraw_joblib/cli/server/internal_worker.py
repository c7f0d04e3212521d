"""The command internal-worker: run internal tasks in this process until a signal."""

import asyncio
import os
import signal

from taskiq.receiver import Receiver

from zndraw_joblib.cli.display import UsageError, print_note, warn_of_unknown
from zndraw_joblib.cli.server import database
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.internal.registry import CannotLoadJobs
from zndraw_joblib.server.internal.setup import QueueBroker, worker_broker
from zndraw_joblib.server.process.settings import ServerSettings


def run(database_url: str | None, concurrency: int | None) -> None:
    """Run internal tasks until SIGINT or SIGTERM, and let the running ones finish. Raises `CommandError`.

    A second signal ends the process at once.
    """
    config = database.load_settings(database_url, internal_concurrency=concurrency)
    warn_of_unknown(ServerSettings.model_fields)
    location = database.locate(config.database_url)
    if location.is_sqlite:
        raise UsageError(
            "internal-worker cannot use SQLite, which one server process uses alone and which runs internal "
            "tasks itself. Set --database-url postgresql://user:password@host/name "
            "(or ZNDRAW_JOBLIB_DATABASE_URL)"
        )
    try:
        broker = worker_broker(config)
    except CannotLoadJobs as error:
        raise UsageError(str(error)) from error
    database.run(config.database_url, schema.prepare)
    print_note(
        f"Running up to {config.internal_concurrency} internal tasks of {location.text}; "
        "Ctrl-C lets the running tasks finish."
    )
    asyncio.run(_work(broker, config.internal_concurrency))


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
