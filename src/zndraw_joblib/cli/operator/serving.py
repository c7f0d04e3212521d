"""Run the standalone server until a signal ends it."""

import signal
import sys
from functools import partial

from zndraw_joblib.cli.logs import Speech
from zndraw_joblib.cli.operator import banner, configuration, database, first_start, process, processes
from zndraw_joblib.cli.operator.first_start import Keys
from zndraw_joblib.cli.operator.listening import listen, url_of
from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema


def run(host: str, port: int, database_url: str | None, workers: int | None, speech: Speech) -> None:
    """Serve until SIGINT or SIGTERM. Raises `Refusal` where that cannot begin."""
    settings = configuration.read(database_url, workers)
    if settings.workers > 1:
        allow_several(settings)
    with listen(host, port) as listener:
        # A SIGTERM that comes before or after uvicorn's own handling ends us as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        url = url_of(host, listener)
        keys = _prepare(settings, url)
        place = database.describe(settings.database_url)
        is_named = settings.database_url != configuration.read(None).database_url
        ready = partial(banner.show, url, place, keys, is_named=is_named, processes=settings.workers)
        serve = processes.serve if settings.workers > 1 else process.serve
        serve(settings, listener, speech, ready)


def allow_several(settings: ServerSettings) -> None:
    """Refuse several processes where they cannot work; choose what works between them."""
    if sys.platform == "win32":
        raise Misuse("On Windows there is one server process on a port: leave --workers at 1")
    if database.is_sqlite(settings.database_url):
        raise Misuse(
            f"SQLite is for one server process: --workers {settings.workers} needs "
            "--database-url postgresql://user:password@host/name (or ZNDRAW_JOBLIB_DATABASE_URL)"
        )
    if "socketio_transports" not in settings.model_fields_set:
        # Long-polling spreads a client's requests over processes that do not know each other's clients.
        settings.socketio_transports = ["websocket"]


def _prepare(settings: ServerSettings, url: str) -> Keys | None:
    """Prepare the database, and on a first start a token. Return None where the operator set the token."""
    if settings.admin_token is not None:
        database.run(settings.database_url, schema.prepare)
        return None
    if database.is_in_memory(settings.database_url):
        raise Misuse("A database in memory needs ZNDRAW_JOBLIB_ADMIN_TOKEN: no token can be made in it")
    return database.run(settings.database_url, partial(first_start.prepare, url=url))
