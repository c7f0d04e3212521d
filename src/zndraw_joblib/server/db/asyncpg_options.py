"""Connect to PostgreSQL with asyncpg: parameters of a URL in libpq's spelling, and limits of a connection.

This is the only module that uses a private part of asyncpg: the transport of a connection, to set options
of its socket. Without it, this side notices a lost connection by the time limit of its statement.
"""

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlencode

from sqlalchemy.engine import URL, make_url

from zndraw_joblib.server.db.compiled import ASYNCPG
from zndraw_joblib.server.db.limits import Limits

Connection: TypeAlias = Any  # asyncpg comes without types

# asyncpg reads these from its own URL.
_FILES = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
_PASSED_ON = _FILES | {
    *("sslmode", "sslpassword", "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    *("passfile", "service", "krbsrvname", "gsslib", "target_session_attrs"),
}
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SERVER_SETTINGS = frozenset({"application_name", "options"})
_CACHE_SIZES = frozenset({"prepared_statement_cache_size", "statement_cache_size"})
_NUMBERS = _CACHE_SIZES | {"connect_timeout", "command_timeout", "tcp_user_timeout"}
_KEEPALIVES = frozenset({"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"})
# Accepted without effect, with values that require nothing of the driver.
_IGNORED = {
    "channel_binding": {"disable", "prefer"},
    "client_encoding": {"utf8", "utf-8", "auto"},
    "gssencmode": {"disable", "prefer"},
    "sslcompression": {"0"},
    "sslsni": {"1"},
}
_ADDRESS = frozenset({"host", "port", "user", "password", "database", "dbname"})
_KNOWN = (
    _PASSED_ON | _SERVER_SETTINGS | _NUMBERS | _KEEPALIVES | {*_IGNORED, "ssl", "fallback_application_name"}
)
_KEEPALIVE_PROBES = 3
_GRACE_SECONDS = 5.0


class InvalidDatabaseUrl(ValueError):
    """The URL names no supported database, or has a parameter that is not supported."""


_AUTHORITY = re.compile(r"(postgres(?:ql)?(?:\+\w+)?://)([^/?#]*)([^?#]*)\??(.*)", re.DOTALL)
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\],]+))(?::(\d*))?")
_PORT = 5432
_LAST_PORT = 2**16 - 1
_UNQUOTED = (
    "The database URL has an @ or a comma too many. Write special characters of the user, the password and "
    "the name of the database as %XX: @ as %40, / as %2F"
)


def parse_url(text: str) -> URL:
    """Return a URL; several hosts and their ports, separated by commas, are in its query.

    Raises `InvalidDatabaseUrl`, whose text has no part of the URL that may belong to a password.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return make_url(text)
    scheme, authority, path, query = match.groups()
    user, at, address = authority.rpartition("@")
    if "," not in address:
        url = _checked(make_url(text))
        hosts = _split(url.query.get("host", ()))
        is_plain = len(hosts) < 2 and "[" not in "".join(hosts)
        return url if is_plain else _with_hosts(url, hosts)
    url = _checked(make_url(f"{scheme}{user}{at}{path or '/'}?{query}"))
    if "@" in path:
        raise InvalidDatabaseUrl(_UNQUOTED)
    if "host" in url.query:
        raise InvalidDatabaseUrl(
            "The database URL has hosts before its path and in the parameter host. Remove the parameter"
        )
    return _with_hosts(url, [unquote(host) for host in address.split(",")])


def _checked(url: URL) -> URL:
    # Such a host ends with what follows an @ or a slash of the password.
    if set("@,") & set(url.host or ""):
        raise InvalidDatabaseUrl(_UNQUOTED)
    return url


def _with_hosts(url: URL, hosts: Sequence[str]) -> URL:
    """Return a URL with several hosts; the parameter `port` has one for all, or one for each of them."""
    ports = _split(url.query.get("port", ()))
    if len(ports) not in {0, 1, len(hosts)}:
        raise InvalidDatabaseUrl(
            f"The database URL has {len(hosts)} hosts and port={','.join(ports)}. Name one port for all "
            "hosts, or one for each"
        )
    ports = ports * len(hosts) if len(ports) == 1 else ports or [""] * len(hosts)
    addresses = [_address(n, host, port) for n, (host, port) in enumerate(zip(hosts, ports, strict=True), 1)]
    return url.update_query_dict(
        {
            "host": ",".join(host for host, _ in addresses),
            "port": ",".join(str(port) for _, port in addresses),
        }
    )


def _address(n: int, text: str, port: str) -> tuple[str, int]:
    """Return the n-th host, and its port: a port behind the host, or that of the parameter."""
    match = _HOST.fullmatch(text)
    digits = "" if match is None else match[3] or port or str(_PORT)
    if match is None or not digits.isdecimal() or not 0 < int(digits) <= _LAST_PORT:
        raise InvalidDatabaseUrl(
            f"Host {n} of the database URL cannot be read. Write host:port, with a port of at most "
            f"{_LAST_PORT}, or [address]:port for IPv6, and separate hosts by single commas"
        )
    return match[1] or match[2], int(digits)


def shown_hosts(url: URL) -> str:
    """Return the hosts and ports of a URL, as in a URL."""
    hosts, ports = (_split(url.query.get(name, ())) for name in ("host", "port"))
    if url.host or not hosts:
        hosts, ports = [url.host or ""], [str(url.port or "")]
    shown = [f"[{host}]" if ":" in host and "/" not in host else host for host in hosts]
    return ",".join(
        f"{host}:{port}" if port else host for host, port in zip_longest(shown, ports[: len(shown)])
    )


def _split(value: str | Sequence[str]) -> list[str]:
    return [part for text in ([value] if isinstance(value, str) else value) for part in text.split(",")]


def connect_arguments(url: URL, limits: Limits) -> dict[str, Any]:
    """Return the arguments of `asyncpg.connect` for a URL. Raises `InvalidDatabaseUrl`."""
    params = {
        name: value if isinstance(value, str) else value[-1]
        for name, value in url.query.items()
        if name not in _ADDRESS
    }
    _check(params)
    address = {name: value for name, value in url.query.items() if name in _ADDRESS}
    if "dbname" in address:
        address["database"] = address.pop("dbname")
    arguments: dict[str, Any]
    _, arguments = ASYNCPG.create_connect_args(url.set(query=address))
    numbers = {name: _number(name, params[name]) for name in _NUMBERS & params.keys()}
    arguments["timeout"] = numbers.get("connect_timeout") or limits.connect
    # PostgreSQL ends a statement before this time, unless PostgreSQL is unreachable.
    arguments["command_timeout"] = numbers.get("command_timeout") or limits.statement + _GRACE_SECONDS
    if cache_sizes := [int(numbers[name]) for name in _CACHE_SIZES & numbers.keys()]:
        arguments["statement_cache_size"] = min(cache_sizes)
    name = params.get("application_name") or params.get("fallback_application_name") or "zndraw-joblib"
    arguments["server_settings"] = {"application_name": name}
    if "options" in params:
        arguments["server_settings"]["options"] = params["options"]
    return arguments | _passed_on(params)


def _passed_on(params: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments with parameters that asyncpg reads only from a URL."""
    passed_on = {name: value for name, value in params.items() if name in _PASSED_ON}
    arguments: dict[str, Any] = {}
    if passed_on.get("sslrootcert") == "system":
        del passed_on["sslrootcert"]
        passed_on.pop("sslmode", None)
        arguments["ssl"] = ssl.create_default_context()
    elif "ssl" in params:
        passed_on.setdefault("sslmode", params["ssl"])
    if passed_on:
        arguments["dsn"] = f"postgresql://?{urlencode(passed_on)}"
    return arguments


def _check(params: Mapping[str, str]) -> None:
    """Raise `InvalidDatabaseUrl` for the first parameter that is unknown or wrong, without secret values."""
    for name, value in params.items():
        if name not in _KNOWN:
            raise InvalidDatabaseUrl(
                f"The database URL has an unknown parameter {name!r}. Remove it, or use one of "
                f"{', '.join(sorted(_KNOWN))}"
            )
        if name in _IGNORED and value.lower() not in _IGNORED[name]:
            allowed = " or ".join(sorted(_IGNORED[name]))
            raise InvalidDatabaseUrl(
                f"The database URL has {name}={value}, which the driver cannot provide. Remove it or use "
                f"{name}={allowed}; sslmode=verify-full with sslrootcert verifies the server"
            )
        if name in {"sslmode", "ssl"} and value not in _SSL_MODES:
            raise InvalidDatabaseUrl(
                f"The database URL has {name}={value}. Use one of {', '.join(_SSL_MODES)}"
            )
        if name in _FILES and value != "system" and not Path(value).expanduser().is_file():
            raise InvalidDatabaseUrl(
                f"The database URL has {name}={value}, but there is no such file. Name an existing file"
            )
        if name in _KEEPALIVES:
            _number(name, value)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1
    if not 0 <= number < 2**31:
        raise InvalidDatabaseUrl(f"The database URL has {name}={value}. Use a number that is not negative")
    return number


async def prepare(connection: Connection, limits: Limits, *, is_for_migrations: bool = False) -> None:
    """Set the limits of a new connection, on both of its ends.

    A migration may wait for another one, and build a large index: its statements have no limit.
    """
    _bound_socket(connection, limits.response)
    idle = max(1, round(limits.response / 2))
    probe = max(1, round(limits.response / 2 / _KEEPALIVE_PROBES))
    values: dict[str, int | str] = {
        "statement_timeout": 0 if is_for_migrations else milliseconds(limits.statement),
        "lock_timeout": 0 if is_for_migrations else milliseconds(limits.session_lock),
        "idle_in_transaction_session_timeout": milliseconds(limits.idle_transaction),
        "tcp_keepalives_idle": idle,
        "tcp_keepalives_interval": probe,
        "tcp_keepalives_count": _KEEPALIVE_PROBES,
        "tcp_user_timeout": milliseconds(limits.response),
    }
    if not is_for_migrations:
        # A plan that is made while a table is small scans it, and stays cached while the table grows.
        # For short lists PostgreSQL would plan each execution, which costs more than most statements.
        values |= {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}
    statements = [f"SET {name} = {value}" for name, value in values.items()]
    # It ends statements of disconnected clients. Not every version and system has it.
    statements.append(
        "DO $$ BEGIN PERFORM set_config('client_connection_check_interval', "
        f"'{milliseconds(limits.response / 2)}', false); EXCEPTION WHEN OTHERS THEN NULL; END $$"
    )
    await connection.execute("; ".join(statements))


def _bound_socket(connection: Connection, seconds: float) -> None:
    """Let the kernel give up a connection whose other end does not acknowledge data or probes."""
    transport = getattr(connection, "_transport", None)
    own = None if transport is None else transport.get_extra_info("socket")
    if own is None or own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": max(1, round(seconds / 2)),
        "TCP_KEEPINTVL": max(1, round(seconds / 2 / _KEEPALIVE_PROBES)),
        "TCP_KEEPCNT": _KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": milliseconds(seconds),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # some systems do not have it
            own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one, because PostgreSQL takes 0 for no limit."""
    return max(1, round(seconds * 1000))
