"""What a run may reach: none, the public internet, or a list; with the operator's exceptions, and narrower
for some packages.

A name is decided on before it is looked up, and each of its addresses before it is connected to. An entry
that names a host permits it wherever it is; `*.suffix` says which names, but not that they may lead inside:
there, others may be able to make names.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_network
from typing import Literal

import msgspec

from hutch.egress.addresses import Address, Network, read_host, special
from hutch.errors import HutchError, SettingError
from hutch.settings import Settings

Mode = Literal["none", "public", "allowlist"]

_EXPECTED = (
    "expected a host, *.suffix, an address or a network, "
    "each with or without a port: api.example.com:443, *.example.com, 10.1.2.3:80, [fd00::1]:80, 10.1.0.0/16"
)
_ENTRY = re.compile(
    r"(?P<host>\[[^\]]*\]|[^:\[\]/]+)(?P<bits>/[0-9]{1,3})?(:(?P<port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(?P<bare_bits>/[0-9]{1,3})?"
)
# Ports of other protocols (fetch standard, "port blocking"): mail, shells, IRC, printers and such.
# fmt: off
_OTHER_PROTOCOLS = frozenset((
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104,
    109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515,
    526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049,
    3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
))
# fmt: on


class Refused(HutchError):
    """What was to be reached is not permitted."""

    code = "egress_refused"


class Rule(msgspec.Struct, frozen=True):
    """One entry: a host, or names that end alike, or addresses; on one port or all."""

    host: str | None = None
    suffix: str | None = None
    network: Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        return self._on(port) and host == self.host

    def fits(self, host: str, port: int) -> bool:
        return self._on(port) and self.suffix is not None and host.endswith(self.suffix)

    def covers(self, address: Address, port: int) -> bool:
        network = self.network
        if network is None or not self._on(port) or network.version != address.version:
            return False
        return address in network

    def _on(self, port: int) -> bool:
        return self.port is None or self.port == port


class Policy(msgspec.Struct, frozen=True):
    """What one run may reach."""

    mode: Mode
    allow: tuple[str, ...] = ()
    """What may be reached although it is not public or, with `allowlist`, at all."""
    only: tuple[str, ...] | None = None
    """Narrower: of what the rest permits, no more than these."""
    plain: tuple[str, ...] = ()
    """Where the broker may use http; besides what `allow` names as such, not by its suffix."""

    def check_host(self, host: Address | str, port: int) -> None:
        """Before a name is looked up. Raises Refused."""
        if self.mode == "none":
            raise Refused("Network access is off for this tool.")
        if self.only is not None and not _mentions(self.only, host, port):
            raise Refused(
                f"{_shown(host, port)} is not among what this package may reach; the operator can add it to "
                "the setting package_egress."
            )
        if _mentions(self.allow, host, port):
            return
        if self.mode == "allowlist":
            raise Refused(f"{_shown(host, port)} is not on the list of what tools may reach; {_advice()}.")
        if port in _OTHER_PROTOCOLS:
            raise Refused(f"Port {port} is not one for HTTP; {_advice(f'{_host(host)}:{port}')}.")

    def refusal(self, host: Address | str, port: int, address: Address) -> str | None:
        """Why a host that passed `check_host` may not be reached at an address, or None if it may."""
        kind = special(address)
        if kind is None or _permits(self.allow, host, port, address):
            return None
        if host == address:
            return f"{_host(host)} is {kind}; {_advice()}."
        return f"{host} resolves to {address}, {kind}; {_advice()}."

    def permits_plain(self, host: Address | str, port: int) -> bool:
        """Whether http, which anybody on the way can read, is good enough there."""
        if isinstance(host, str) and any(
            rule.names(host, port) for rule in parse("egress_allow", self.allow)
        ):
            return True
        return _mentions(self.plain, host, port) or (
            not isinstance(host, str) and _mentions(self.allow, host, port)
        )


def fetch_policy(settings: Settings) -> Policy:
    """What the broker may reach. Raises SettingError for an entry that is none."""
    parse("egress_allow", settings.egress_allow)
    parse("egress_http_hosts", settings.egress_http_hosts)
    if settings.egress == "none":
        return Policy("none")
    return Policy(settings.egress, settings.egress_allow, plain=settings.egress_http_hosts)


def policy_for(settings: Settings, package: str | None = None) -> Policy:
    """What the tools of a package may reach. Raises SettingError for an entry that is none."""
    parse("egress_allow", settings.egress_allow)
    narrower = settings.package_egress.get(package) if package is not None else None
    if settings.egress == "none" or narrower == "none":
        return Policy("none")
    if narrower is None:
        return Policy(settings.egress, settings.egress_allow)
    where = f"package_egress: {package}"
    only = tuple(narrower.split())
    if not only or {"public", "allowlist", "none"} & {*only}:
        raise SettingError(f"{where}: expected `none`, or hosts separated by spaces, got {narrower!r}.")
    parse(where, only)
    return Policy(settings.egress, settings.egress_allow, only)


def check(settings: Settings) -> None:
    """Raises SettingError for the first entry of any policy that is none."""
    fetch_policy(settings)
    for package in (None, *settings.package_egress):
        policy_for(settings, package)


@lru_cache(maxsize=1024)
def parse(setting: str, entries: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of a setting's entries. Raises SettingError, which names both."""
    return tuple(_rule(setting, entry) for entry in entries)


def _rule(setting: str, entry: str) -> Rule:
    found = _ENTRY.fullmatch(entry.strip())
    if found is None:
        raise SettingError(f"{setting}: {entry!r}: {_EXPECTED}.")
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65536:
        raise SettingError(f"{setting}: {entry!r}: expected a port from 1 to 65535.")
    host = found["host"] or f"[{found['bare']}]"
    bits = found["bits"] or found["bare_bits"]
    try:
        if host.startswith("*."):
            suffix = read_host(host[2:])
            if isinstance(suffix, str) and not bits:
                return Rule(suffix=f".{suffix}", port=port)
            raise ValueError("an address has no suffix")
        where = read_host(host)
        if isinstance(where, str):
            if bits:
                raise ValueError("a name is no network")
            return Rule(host=where, port=port)
        return Rule(network=ip_network(f"{where}{bits or ''}"), port=port)
    except ValueError as error:
        raise SettingError(f"{setting}: {entry!r}: {error}; {_EXPECTED}.") from None


def _mentions(entries: tuple[str, ...], host: Address | str, port: int) -> bool:
    rules = parse("egress_allow", entries)
    if isinstance(host, str):
        return any(rule.names(host, port) or rule.fits(host, port) for rule in rules)
    return any(rule.covers(host, port) for rule in rules)


def _permits(entries: tuple[str, ...], host: Address | str, port: int, address: Address) -> bool:
    rules = parse("egress_allow", entries)
    named = isinstance(host, str) and any(rule.names(host, port) for rule in rules)
    return named or any(rule.covers(address, port) for rule in rules)


def _host(host: Address | str) -> str:
    return f"[{host}]" if not isinstance(host, str) and host.version == 6 else str(host)


def _shown(host: Address | str, port: int) -> str:
    return f"{_host(host)}:{port}"


def _advice(entry: str | None = None) -> str:
    """Who can do what about it."""
    what = f"with {entry} in" if entry else "with"
    return f"the operator can allow it {what} the setting egress_allow"
