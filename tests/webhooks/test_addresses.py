"""Which URLs and addresses webhooks may have."""

import pytest

from zndraw_joblib.server.process.addresses import EndpointRefused, check_addresses, endpoint_of
from zndraw_joblib.server.process.settings import JobLibSettings

_PRIVATE = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd12::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1"),
]
# Refused even where all networks are allowed.
_NEVER = [
    *("0.0.0.1", "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "::", "fe80::1", "ff02::1", "fec0::1"),
    *(
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::a00:1",
    ),
    *("2002:a9fe:a9fe::1", "2001:0:1::1", "64:ff9b:1::a00:1", "2001:db8::1", "fe80::1%eth0"),
]
_PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"]


@pytest.mark.parametrize("address", [*_PRIVATE, *_NEVER, "::7f00:1"])
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    """In each spelling, also beside a public one."""
    for addresses in ([address], [_PUBLIC[0], address]):
        with pytest.raises(EndpointRefused):
            check_addresses(addresses, JobLibSettings())


@pytest.mark.parametrize("address", _PRIVATE)
def test_a_setting_allows_private_networks(address: str) -> None:
    """The address is returned as it is connected to: without another spelling."""
    settings = JobLibSettings(
        webhook_networks=["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
    )
    settings.webhook_networks += ["100.64.0.0/10", "::1/128", "fd00::/8"]
    assert check_addresses([address], settings) == [address.removeprefix("::ffff:")]


@pytest.mark.parametrize("address", _NEVER)
def test_no_setting_allows_metadata_services(address: str) -> None:
    """Nor link-local, multicast and reserved addresses, and those that stand for others."""
    with pytest.raises(EndpointRefused):
        check_addresses([address], JobLibSettings(webhook_networks=["0.0.0.0/0", "::/0"]))


def test_public_addresses_are_allowed() -> None:
    """Also one that a translator of an IPv6 network makes of a public IPv4 address."""
    assert check_addresses(_PUBLIC, JobLibSettings()) == _PUBLIC
    with pytest.raises(EndpointRefused, match="no address"):
        check_addresses([], JobLibSettings())


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://example.org/", "webhook_http"),
        ("https://example.org:22/", "webhook_ports"),
        ("https://127.0.0.1/", "not public"),
        ("https://[::1]/", "not public"),
    ],
)
def test_schemes_and_ports_are_bounded(url: str, text: str) -> None:
    """The refusal names the setting."""
    with pytest.raises(EndpointRefused, match=text):
        endpoint_of(url, JobLibSettings())


def test_an_endpoint_has_the_parts_of_its_url() -> None:
    """The default port, the header `Host` and the path with the query."""
    assert endpoint_of("https://Example.org?a=1", JobLibSettings()) == (
        *("https", "example.org", 443, "Example.org", "/?a=1"),
    )
    settings = JobLibSettings(webhook_http=True, webhook_ports="8000-8999, 443")
    assert endpoint_of("http://example.org:8080/x", settings).authority == "example.org:8080"
    for wrong in (["x"], ["0"], ["9-1"], ["70000"]):
        with pytest.raises(ValueError, match="webhook_ports"):
            JobLibSettings(webhook_ports=wrong)
    with pytest.raises(ValueError, match="webhook_networks"):
        JobLibSettings(webhook_networks=["10.0.0.0/99"])
