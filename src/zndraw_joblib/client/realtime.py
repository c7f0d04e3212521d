"""The worker's own Socket.IO connection, kept open in the background."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from zndraw_joblib.client.retry import describe
from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.events import Event
from zndraw_joblib.wire.operators import Version

log = logging.getLogger(__name__)
# The library logs every packet, also the one with the token.
_library_log = logging.getLogger(f"{__name__}.library")
_library_log.setLevel(logging.CRITICAL)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 60.0
_SETTLED_SECONDS = 10.0
_RESPONSE_SECONDS = 5
_CLOSE_SECONDS = 1.0


class Realtime:
    """A connection to the Socket.IO server at `url`, which a thread opens, and opens again when it is lost.

    It uses WebSocket, or HTTP polling where the server refuses WebSocket. While the server does not respond,
    the thread tries again with growing pauses, at last once a minute; the log says so once. The thread asks
    the server first whether it has Socket.IO, and ends if it has none. With `trust_proxies` it uses the
    proxies of the environment.
    """

    def __init__(self, url: str, token: str | None, *, trust_proxies: bool) -> None:
        self._url = url
        self._token = token
        self._trust_proxies = trust_proxies
        self._handlers: dict[str, list[Callable[..., Any]]] = {}
        self._client: Any = None
        self._send_lock = threading.Lock()
        self._stop = threading.Event()
        self._is_lost = self._has_answered = False
        self._thread = threading.Thread(target=self._run, name="zndraw-joblib-realtime", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Return whether the connection is open."""
        return self._client is not None

    def on(self, event: str, handler: Callable[..., Any]) -> None:
        """Call `handler` with the data of each such event, after the handlers that were added before.

        ``connect`` and ``disconnect`` have no data. Handlers run in threads of the connection.
        """
        self._handlers.setdefault(event, []).append(handler)

    def off(self, event: str, handler: Callable[..., Any]) -> None:
        """Stop calling `handler`."""
        self._handlers[event].remove(handler)

    def emit(self, event: Event, callback: Callable[..., None] | None = None) -> None:
        """Send an event; `callback` gets the server's answer. Raises ConnectionError without a connection."""
        client = self._client
        if client is None:
            raise ConnectionError("Socket.IO is not connected")
        with self._send_lock:
            client.emit(event.event_name, event.model_dump(mode="json"), callback=callback)

    def close(self) -> None:
        """Close the connection for good; do not wait for a server that does not respond."""
        self._stop.set()
        client = self._client
        if client is not None:
            threading.Thread(target=client.disconnect, daemon=True).start()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        backoff = ExponentialBackoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while not self._stop.is_set():
            began = time.monotonic()
            if self._is_missing():
                log.info(
                    "The server at %s has no Socket.IO: cancellations come with the next heartbeat", self._url
                )
                return
            try:
                self._wait_for_end(self._open())
                fault: Exception = ConnectionError("The connection was lost")
            except Exception as error:
                fault = error
            if time.monotonic() - began > _SETTLED_SECONDS:
                backoff.reset()
            self._log_loss(fault)
            self._stop.wait(backoff.next())

    def _is_missing(self) -> bool:
        """Return whether the server says that it has no Socket.IO; ask until it has answered once."""
        import httpx  # noqa: PLC0415 - as in `_new_client`

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            if not self._has_answered:
                url = f"{self._url}{ops.PREFIX}{ops.GET_VERSION.path()}"
                options: dict[str, Any] = {"timeout": _RESPONSE_SECONDS, "trust_env": self._trust_proxies}
                response = httpx.get(url, headers=headers, **options)
                self._has_answered = True
                return response.is_success and not Version.model_validate_json(response.content).socketio
        except Exception as error:
            log.debug("Asking the server for Socket.IO: %s", describe(error))
        return False

    def _open(self) -> Any:
        """Return a connected client. Raises the last error."""
        try:
            return self._connect("websocket")
        except ConnectionRefusedError:
            raise
        except Exception as error:
            if self._stop.is_set():
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
                wait_timeout=_RESPONSE_SECONDS,
            )
        except Exception as error:
            _release(client)
            if not client.failed_namespaces:
                raise
            reason = refusals[-1] if refusals else None
            text = reason.get("message") if isinstance(reason, dict) else reason
            raise ConnectionRefusedError(f"The server refused the connection: {text}") from error
        return client

    def _new_client(self) -> Any:
        # Imported here: it takes half a second, and few programs need it.
        import requests  # noqa: PLC0415
        import socketio  # noqa: PLC0415

        session = requests.Session()
        session.trust_env = self._trust_proxies
        client = socketio.Client(
            reconnection=False,
            handle_sigint=False,
            logger=_library_log,
            engineio_logger=_library_log,
            request_timeout=_RESPONSE_SECONDS,
            http_session=session,
            websocket_extra_options={} if self._trust_proxies else {"http_no_proxy": ["*"]},
        )
        client.on("*", self._call_handlers)
        return client

    def _wait_for_end(self, client: Any) -> None:
        """Publish an open connection, and wait until it is lost or closed."""
        self._client = client
        if self._stop.is_set():
            client.disconnect()
            return
        if self._is_lost:
            self._is_lost = False
            log.info("Socket.IO at %s is connected", self._url)
        self._call_handlers("connect")
        # Wait for the reading thread: the library reports no loss right after the connection opened.
        client.eio.wait()
        self._client = None
        _release(client)
        self._call_handlers("disconnect")

    def _call_handlers(self, event: str, *data: Any) -> None:
        for handler in list(self._handlers.get(event, ())):
            try:
                handler(*data)
            except Exception:
                log.exception("A handler of the event %s failed", event)

    def _log_loss(self, fault: Exception) -> None:
        if self._stop.is_set():
            return
        level = logging.DEBUG if self._is_lost else logging.INFO
        self._is_lost = True
        log.log(level, "Socket.IO at %s: %s; the worker continues without it", self._url, describe(fault))


def _release(client: Any) -> None:
    """Close the sockets that the library leaves open when a connection is lost."""
    with suppress(Exception):
        if client.eio.ws is not None:
            client.eio.ws.shutdown()
        client.eio.http.close()
