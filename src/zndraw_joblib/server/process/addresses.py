"""The hosts, ports and addresses to which the server may send webhooks."""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from zndraw_joblib.server.process.settings import JobLibSettings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_DEFAULT_PORTS = {"https": 443, "http": 80}
# No setting allows these: metadata services of clouds, link-local, unspecified, multicast, and addresses that
# stand for others in a form that no receiver needs (6to4, Teredo, NAT64 of a site, IPv4-compatible).
_NEVER = [
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "192.88.99.0/24"),
        *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.0/24", "198.18.0.0/15"),
        *("::/128", "fe80::/10", "fec0::/10", "ff00::/8", "2001::/32", "2002::/16", "64:ff9b:1::/48"),
        *(
            "fd00:ec2::/32",
            "fd20:ce::254/128",
            "fd00:c1::a9fe:a9fe/128",
            "fd00:42::42/128",
            "100::/64",
            "5f00::/16",
            "2001:db8::/32",
        ),
    )
]
_MAPPED, _NAT64 = ipaddress.ip_network("::ffff:0:0/96"), ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class Endpoint(NamedTuple):
    """Where a URL points. `authority` is the header `Host`, `target` the path with the query."""

    scheme: str
    host: str
    port: int
    authority: str
    target: str


class EndpointRefused(Exception):
    """The server may not send webhooks there."""


def endpoint_of(url: str, settings: JobLibSettings) -> Endpoint:
    """Return where a checked URL points. Raises `EndpointRefused` for a scheme, port or address."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    if parts.scheme == "http" and not settings.webhook_http:
        raise EndpointRefused("the URL must begin with https:// (an operator may allow http: webhook_http)")
    if not any(first <= port <= last for first, last in _ranges(settings.webhook_ports)):
        allowed = " ".join(settings.webhook_ports)
        raise EndpointRefused(f"port {port} is not allowed; allowed are {allowed} (webhook_ports)")
    if (literal := literal_address(host)) is not None:
        check_addresses([literal], settings)
    target = parts.path or "/"
    return Endpoint(
        parts.scheme, host, port, parts.netloc, f"{target}?{parts.query}" if parts.query else target
    )


def _ranges(ports: Iterable[str]) -> list[tuple[int, int]]:
    pairs = [text.partition("-") for text in ports]
    return [(int(first), int(last or first)) for first, _, last in pairs]


def literal_address(host: str) -> str | None:
    """Return the host if it is an address, None if it is a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def check_addresses(addresses: Sequence[str], settings: JobLibSettings) -> list[str]:
    """Return addresses of a host as they are connected to. Raises `EndpointRefused` if one is not allowed.

    Its text has no address: who writes a webhook learns nothing about names of the server's network.
    """
    if not addresses:
        raise EndpointRefused("the name of the host has no address")
    allowed = [ipaddress.ip_network(text, strict=False) for text in settings.webhook_networks]
    checked = []
    for text in addresses:
        address = _plain(text)
        if not _may_connect(address, allowed):
            raise EndpointRefused(
                "the host has an address that is not public; an operator may allow its network "
                "(webhook_networks), but no metadata service"
            )
        checked.append(str(address))
    return checked


def _plain(text: str) -> Address:
    """Return an address without another spelling. Raises `EndpointRefused` for one with a zone."""
    if "%" in text:
        raise EndpointRefused("the host has an address of one link only")
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address in _MAPPED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _may_connect(address: Address, allowed: Sequence[Network]) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        # The IPv4 address that a translator of the network connects to.
        return _may_connect(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF), ())
    if _is_in(address, _NEVER):
        return False
    if _is_in(address, allowed):
        return True
    if isinstance(address, ipaddress.IPv6Address) and address in _COMPATIBLE:
        return False
    return address.is_global and not address.is_private and not address.is_reserved


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
