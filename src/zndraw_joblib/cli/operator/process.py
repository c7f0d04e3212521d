"""One server process: alone, or as a child of `processes`, which runs this module."""

import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from pydantic import BaseModel, SecretStr

from zndraw_joblib.cli import logs
from zndraw_joblib.cli.display import one_line
from zndraw_joblib.cli.logs import Speech
from zndraw_joblib.cli.operator import database
from zndraw_joblib.cli.refusal import Misuse, Refusal
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.internal.extensions import CannotLoad
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema

READY = "ready"
# How long a stop may take: uvicorn's patience with open requests, then what is still being written.
STOP_SECONDS = 20.0
_GRACE_SECONDS = 5
# Longer than httpx keeps an idle connection, so that no request meets a server that hangs up.
KEEP_ALIVE_SECONDS = 60


class Plan(BaseModel):
    """What a child is told on its standard input: one line of JSON, secrets in clear."""

    listener: int
    speech: Speech
    settings: dict[str, Any]

    @classmethod
    def of(cls, settings: ServerSettings, listener: socket.socket, speech: Speech) -> "Plan":
        """Return the plan for serving with all of these settings on a socket."""
        values = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in settings
        }
        return cls(listener=listener.fileno(), speech=speech, settings=values)


class _Server(uvicorn.Server):
    """uvicorn, which says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(
    settings: ServerSettings, listener: socket.socket, speech: Speech, ready: Callable[[], object]
) -> None:
    """Serve on a socket until SIGINT or SIGTERM; call `ready` once requests are answered.

    Raises `Misuse` where an internal extension cannot be loaded.
    """
    try:
        app = create_app(settings)
    except CannotLoad as error:
        raise Misuse(str(error)) from error
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=speech.access_log,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    # What is there from the start stays: the collector need not walk it each time, for a tenth of a second.
    gc.collect()
    gc.freeze()
    with suppress(KeyboardInterrupt):
        _Server(config, ready).run([listener])


def _be_child() -> None:
    """Serve what the line on standard input says, until SIGTERM or until the parent is gone.

    Say `READY` in one line on standard output, or why it cannot begin.
    """
    # What else is printed goes to standard error: nobody reads this pipe any more once we are ready.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        line = sys.stdin.buffer.readline()
        if not line:
            return
        threading.Thread(target=_end_with_parent, daemon=True).start()
        try:
            plan = Plan.model_validate_json(line)
            logs.set_up(plan.speech.level, access_log=plan.speech.access_log, is_one_of_many=True)
            settings = ServerSettings(**plan.settings)
            database.run(settings.database_url, schema.prepare)
            listener = socket.socket(fileno=plan.listener)
            listener.set_inheritable(False)
            serve(settings, listener, plan.speech, lambda: print(READY, file=answer, flush=True))
        except Refusal as refusal:
            print(one_line(refusal.format_message()), file=answer)
            sys.exit(refusal.exit_code)


def _end_with_parent() -> None:
    # Standard input ends when the parent does, however that happens.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    _be_child()
