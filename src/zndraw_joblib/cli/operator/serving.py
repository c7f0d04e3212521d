"""Run the standalone server until a signal ends it."""

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import uvicorn

from zndraw_joblib.cli.operator import banner, configuration, database, first_start
from zndraw_joblib.cli.operator.first_start import Keys
from zndraw_joblib.cli.operator.listening import listen, url_of
from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema

_GRACE_SECONDS = 5
# Longer than httpx keeps an idle connection, so that no request meets a server that hangs up.
_KEEP_ALIVE_SECONDS = 60


class _Server(uvicorn.Server):
    """uvicorn, which says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def run(host: str, port: int, database_url: str | None, *, access_log: bool) -> None:
    """Serve until SIGINT or SIGTERM. Raises `Refusal` where that cannot begin."""
    settings = configuration.read(database_url)
    with listen(host, port) as listener:
        # A SIGTERM that comes before or after uvicorn's own handling ends us as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        url = url_of(host, listener)
        keys = _prepare(settings, url)
        place = database.describe(settings.database_url)
        is_named = settings.database_url != configuration.read(None).database_url
        ready = partial(banner.show, url, place, keys, is_named=is_named)
        config = uvicorn.Config(
            create_app(settings),
            log_config=None,
            access_log=access_log,
            lifespan="on",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        with suppress(KeyboardInterrupt):
            _Server(config, ready).run([listener])


def _prepare(settings: ServerSettings, url: str) -> Keys | None:
    """Prepare the database, and on a first start a token. Return None where the operator set the token."""
    if settings.admin_token is not None:
        database.run(settings.database_url, schema.prepare)
        return None
    if database.is_in_memory(settings.database_url):
        raise Misuse("A database in memory needs ZNDRAW_JOBLIB_ADMIN_TOKEN: no token can be made in it")
    return database.run(settings.database_url, partial(first_start.prepare, url=url))
