"""The server's socket, and the URL to reach it at from this machine."""

import errno
import os
import socket

from zndraw_joblib.cli.credentials import canonical
from zndraw_joblib.cli.refusal import Misuse, Refusal

_ANYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound to


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens already, so that no other process can take the port meanwhile."""
    place = "127.0.0.1" if host == "localhost" else host
    try:
        family, _, _, _, address = socket.getaddrinfo(
            place or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family == socket.AF_INET6 and place in _ANYWHERE and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    except socket.gaierror as error:
        raise Misuse(f"Cannot listen on {host!r}: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refusal(f"Port {port} of {host} is taken; --port takes another one") from error
        raise Refusal(f"Cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}") from error


def url_of(host: str, listener: socket.socket) -> str:
    """Return the URL under which this machine reaches the server."""
    place = "127.0.0.1" if host in _ANYWHERE else host
    return canonical(f"http://{f'[{place}]' if ':' in place else place}:{listener.getsockname()[1]}")
