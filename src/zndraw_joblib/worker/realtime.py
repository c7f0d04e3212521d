"""A Socket.IO connection of our own, kept up in the background."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from zndraw_joblib.contract.events import Event
from zndraw_joblib.worker.retry import Backoff, describe

log = logging.getLogger(__name__)
# The library tells of every packet, the one with the token too.
_library_log = logging.getLogger(f"{__name__}.library")
_library_log.setLevel(logging.CRITICAL)

_MOST_PAUSE_SECONDS = 60.0
_SETTLED_SECONDS = 10.0
_ANSWER_SECONDS = 5
_GOODBYE_SECONDS = 1.0


class Realtime:
    """A connection to the Socket.IO server at `url`, made and made anew by a thread of its own.

    It goes by WebSocket, else by HTTP polling. A server that is not there, or that has no Socket.IO, is
    tried again and again, at last once a minute; that is said in one line of the log. With
    `trust_proxies` the proxies of the environment are used.
    """

    def __init__(self, url: str, token: str | None, *, trust_proxies: bool) -> None:
        self._url = url
        self._token = token
        self._trust_proxies = trust_proxies
        self._handlers: dict[str, list[Callable[..., Any]]] = {}
        self._client: Any = None
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._is_out_of_reach = False
        self._thread = threading.Thread(target=self._run, name="zndraw-joblib-realtime", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Tell whether the connection is up."""
        return self._client is not None

    def on(self, event: str, handler: Callable[..., Any]) -> None:
        """Call `handler` with the data of each such event, beside the handlers that are there.

        ``connect`` and ``disconnect`` come without data. Handlers run in threads of the connection.
        """
        self._handlers.setdefault(event, []).append(handler)

    def emit(self, event: Event, callback: Callable[..., None] | None = None) -> None:
        """Send an event; `callback` gets the server's answer. Raises ConnectionError without a connection."""
        client = self._client
        if client is None:
            raise ConnectionError("Socket.IO is not connected")
        with self._sending:
            client.emit(event.event_name, event.model_dump(mode="json"), callback=callback)

    def close(self) -> None:
        """End the connection for good; a server that does not answer is not waited for."""
        self._over.set()
        client = self._client
        if client is not None:
            threading.Thread(target=client.disconnect, daemon=True).start()
        if threading.current_thread() is not self._thread:
            self._thread.join(_GOODBYE_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(_MOST_PAUSE_SECONDS)
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._stay(self._open())
                fault: Exception = ConnectionError("The connection was lost")
            except Exception as error:
                fault = error
            if time.monotonic() - began > _SETTLED_SECONDS:
                backoff.reset()
            self._mourn(fault)
            self._over.wait(backoff.after(fault))

    def _open(self) -> Any:
        """Return a connected client. Raises what kept it from connecting."""
        try:
            return self._connect("websocket")
        except ConnectionRefusedError:
            raise
        except Exception as error:
            if self._over.is_set():
                raise
            log.debug("Socket.IO by WebSocket: %s", describe(error))
        return self._connect("polling")

    def _connect(self, transport: str) -> Any:
        client = self._new_client()
        refusals: list[Any] = []
        client.on("connect_error", refusals.append)
        try:
            client.connect(
                self._url,
                auth={"token": self._token} if self._token else None,
                transports=[transport],
                namespaces=["/"],
                socketio_path=f"{urlsplit(self._url).path}/socket.io",
                wait_timeout=_ANSWER_SECONDS,
            )
        except Exception as error:
            _let_go(client)
            if not client.failed_namespaces:
                raise
            said = refusals[-1] if refusals else None
            text = said.get("message") if isinstance(said, dict) else said
            raise ConnectionRefusedError(f"The server refused the connection: {text}") from error
        return client

    def _new_client(self) -> Any:
        # Half a second of work for who wants no connection.
        import requests  # noqa: PLC0415
        import socketio  # noqa: PLC0415

        session = requests.Session()
        session.trust_env = self._trust_proxies
        client = socketio.Client(
            reconnection=False,
            handle_sigint=False,
            logger=_library_log,
            engineio_logger=_library_log,
            request_timeout=_ANSWER_SECONDS,
            http_session=session,
            websocket_extra_options={} if self._trust_proxies else {"http_no_proxy": ["*"]},
        )
        client.on("*", self._tell)
        return client

    def _stay(self, client: Any) -> None:
        """Keep a connection until it ends."""
        self._client = client
        if self._over.is_set():
            client.disconnect()
            return
        if self._is_out_of_reach:
            self._is_out_of_reach = False
            log.info("Socket.IO at %s is connected", self._url)
        self._tell("connect")
        # The thread that reads; the library does not tell of an end right after the beginning.
        client.eio.wait()
        self._client = None
        _let_go(client)
        self._tell("disconnect")

    def _tell(self, event: str, *data: Any) -> None:
        for handler in list(self._handlers.get(event, ())):
            try:
                handler(*data)
            except Exception:
                log.exception("A handler of the event %s failed", event)

    def _mourn(self, fault: Exception) -> None:
        if self._over.is_set():
            return
        level = logging.DEBUG if self._is_out_of_reach else logging.INFO
        self._is_out_of_reach = True
        log.log(level, "Socket.IO at %s: %s; all goes on without", self._url, describe(fault))


def _let_go(client: Any) -> None:
    """Close what the library leaves open when a connection is lost."""
    with suppress(Exception):
        if client.eio.ws is not None:
            client.eio.ws.shutdown()
        client.eio.http.close()
