from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from hutch.egress.addresses import parse_host, special_kind

LOOPBACK = IPv4Address("127.0.0.1")


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f.1",
        "0x7F000001",
        "0177.0.0.1",
        "0177.0.0x0.01",
        "017700000001",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:FFFF:7F00:0001]",
    ],
)
def test_every_notation_of_an_address_is_parsed(text: str) -> None:
    assert parse_host(text) == LOOPBACK


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "127.0.0.1..",
        "a..b",
        "127.0.0.1%25",
        "127.0.0.1 ",
        "1.2.3.4.5",
        "256.1.1.1",
        "1.2.3.256",
        "4294967296",
        "08.8.8.8",
        "example.com.0x",
        "example.1",
        "\uff0531",
        "①②⑦.⓪.⓪.①",
        "\uff11\uff12\uff17.0.0.1",
        "127。0。0。1",
        "localhost\u200b",
        "%6c%6f%63%61%6c%68%6f%73%74",
        "[fe80::1%eth0]",
        "[fe80::1%25eth0]",
        "[::1",
        "::1",
        "[127.0.0.1]",
        "[]",
        "[v1.x]",
        "user@host",
        "host/path",
        "host:80",
        "host\0",
        "host\r\nx",
        "a" * 64,
        ".".join(["a" * 60] * 5),
    ],
)
def test_invalid_host_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |an address"):
        parse_host(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Example.COM", "example.com"),
        ("localhost.", "localhost"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_service.example", "_service.example"),
        ("1a.example", "1a.example"),
        ("127.0.0.1.nip.io", "127.0.0.1.nip.io"),
    ],
)
def test_name_is_lowercased_without_trailing_dot(text: str, name: str) -> None:
    assert parse_host(text) == name


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("0.1.2.3", "reserved"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("fd12:3456::1", "private"),
        ("fec0::1", "private"),
        ("100.64.0.1", "shared"),
        ("100.127.255.255", "shared"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("192.0.0.192", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("240.0.0.1", "reserved"),
        ("192.0.0.8", "reserved"),
        ("192.88.99.1", "reserved"),
        ("198.18.0.1", "benchmarking"),
        ("2001:2::1", "benchmarking"),
        ("192.0.2.1", "documentation"),
        ("198.51.100.1", "documentation"),
        ("203.0.113.1", "documentation"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("::ffff:10.0.0.1", "private"),
        ("::ffff:169.254.169.254", "metadata"),
        ("::10.0.0.1", "reserved"),
        ("::8.8.8.8", "reserved"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::169.254.169.254", "metadata"),
        ("64:ff9b:1::8.8.8.8", "reserved"),
        ("2002:0a00:0001::1", "private"),
        ("2002:7f00:0001::", "loopback"),
        ("2001:0:1:2:3:4:5:6", "reserved"),
        ("2600::5efe:a00:1", "private"),
        ("2600::200:5efe:7f00:1", "loopback"),
        ("100::1", "reserved"),
        ("5f00::1", "reserved"),
        ("4000::1", "reserved"),
    ],
)
def test_special_address_is_classified(address: str, kind: str) -> None:
    assert kind in (special_kind(ip_address(address)) or "")


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "::ffff:8.8.8.8"),
        *("2606:4700::1111", "2a00:1450::1", "64:ff9b::8.8.8.8", "2002:0808:0808::1", "2600::5efe:808:808"),
    ],
)
def test_public_address_is_not_special(address: str) -> None:
    assert special_kind(ip_address(address)) is None


def test_public_address_of_this_machine_is_special(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulates a kernel that reports a public address as an address of this machine."""

    class Probe(socket.socket):
        def connect(self, address: object) -> None:
            pass

        def getsockname(self) -> object:
            return ("8.8.8.8" if self.family == socket.AF_INET else "2606:4700::1111", 1)

    monkeypatch.setattr("hutch.egress.addresses.socket.socket", Probe)
    assert special_kind(IPv4Address("8.8.8.8")) == "an address of this machine"
    assert special_kind(IPv6Address("2606:4700::1111")) == "an address of this machine"
    assert special_kind(IPv4Address("8.8.4.4")) is None
