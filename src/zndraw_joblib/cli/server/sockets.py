"""The server's listening socket and its URL."""

import errno
import os
import socket

from zndraw_joblib.cli.credentials import canonical
from zndraw_joblib.cli.errors import CommandError, UsageError

_ALL_ADDRESSES = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound to


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that no other process can take the port before the server starts."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        family, _, _, _, resolved = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        dual = family == socket.AF_INET6 and address in _ALL_ADDRESSES and socket.has_dualstack_ipv6()
        return socket.create_server(resolved[:2], family=family, dualstack_ipv6=dual)
    except socket.gaierror as error:
        raise UsageError(
            f"Cannot listen on --host {host!r}: {error.strerror}. Pass an address of this machine"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"Port {port} of {host} is taken by another process. Choose another one with --port"
            ) from error
        raise CommandError(
            f"Cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}. "
            "Choose another --port or --host"
        ) from error


def url_of(host: str, listener: socket.socket) -> str:
    """Return the URL of the server on this machine."""
    address = "127.0.0.1" if host in _ALL_ADDRESSES else host
    return canonical(f"http://{f'[{address}]' if ':' in address else address}:{listener.getsockname()[1]}")
