"""Egress policy: destinations that a run may reach, with the operator's exceptions and restrictions per
package.

A name is checked before it is resolved. Each of its addresses is checked before a connection. An entry that
names a host permits that host at any address. An entry `*.suffix` permits only public addresses, because
strangers may be able to create names below a suffix.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_network
from typing import Literal

import msgspec

from hutch.egress.addresses import Address, Network, parse_host, special_kind
from hutch.errors import HutchError, SettingError
from hutch.settings import Settings

EgressMode = Literal["none", "public", "allowlist"]

_EXPECTED = (
    "expected a host, *.suffix, an address or a network, "
    "each with or without a port: api.example.com:443, *.example.com, 10.1.2.3:80, [fd00::1]:80, 10.1.0.0/16"
)
_ENTRY = re.compile(
    r"(?P<host>\[[^\]]*\]|[^:\[\]/]+)(?P<bits>/[0-9]{1,3})?(:(?P<port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(?P<bare_bits>/[0-9]{1,3})?"
)
# Ports that are refused because other protocols use them, such as mail, shells, IRC and printers (fetch
# standard, "port blocking").
# fmt: off
_OTHER_PROTOCOLS = frozenset((
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104,
    109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515,
    526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049,
    3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
))
# fmt: on


class EgressRefused(HutchError):
    """The policy does not permit this destination."""

    code = "egress_refused"


class EgressRule(msgspec.Struct, frozen=True):
    """One entry of a policy. In its methods, the port None stands for any port."""

    host: str | None = None
    suffix: str | None = None
    network: Network | None = None
    port: int | None = None

    def is_host(self, host: str, port: int | None) -> bool:
        return self._is_port(port) and host == self.host

    def has_suffix(self, host: str, port: int | None) -> bool:
        return self._is_port(port) and self.suffix is not None and host.endswith(self.suffix)

    def contains(self, address: Address, port: int | None) -> bool:
        network = self.network
        if network is None or not self._is_port(port) or network.version != address.version:
            return False
        return address in network

    def _is_port(self, port: int | None) -> bool:
        return port is None or self.port is None or self.port == port


class EgressPolicy(msgspec.Struct, frozen=True):
    mode: EgressMode
    allow: tuple[str, ...] = ()
    """Destinations that are permitted even if they are not public. In mode `allowlist`, only these are
    permitted.
    """
    only: tuple[str, ...] | None = None
    """If set, a destination must also match one of these entries."""
    plain_http: tuple[str, ...] = ()
    """Destinations for which the HTTP client may use http. It may also use http for the hosts and addresses
    in `allow`, but not for the suffixes in `allow`.
    """
    trace_hosts: tuple[str, ...] = ()
    """Destinations to which the HTTP client sends the trace context."""

    def check_host(self, host: Address | str, port: int | None) -> None:
        """Checks a host before it is resolved. With the port None, checks whether any port is permitted.
        Raises EgressRefused.
        """
        if self.mode == "none":
            raise EgressRefused("Network access is off for this tool.")
        if self.only is not None and not _any_rule_matches(self.only, host, port):
            raise EgressRefused(
                f"{_host_and_port(host, port)} is not permitted for this package; the operator can add it "
                "to the setting package_egress."
            )
        if _any_rule_matches(self.allow, host, port):
            return
        if self.mode == "allowlist":
            raise EgressRefused(
                f"{_host_and_port(host, port)} is not in the list of permitted hosts; {_operator_hint()}."
            )
        if port is not None and port in _OTHER_PROTOCOLS:
            raise EgressRefused(
                f"Port {port} is not an HTTP port; {_operator_hint(f'{_host_text(host)}:{port}')}."
            )

    def refusal(self, host: Address | str, port: int | None, address: Address) -> str | None:
        """Returns the reason why a host that passed `check_host` is not permitted at this address, or None if
        it is permitted.
        """
        kind = special_kind(address)
        if kind is None or _permits_address(self.allow, host, port, address):
            return None
        if host == address:
            return f"{_host_text(host)} is {kind}; {_operator_hint()}."
        return f"{host} resolves to {address}, {kind}; {_operator_hint()}."

    def permits_http(self, host: Address | str, port: int) -> bool:
        if isinstance(host, str) and any(
            rule.is_host(host, port) for rule in parse_rules("egress_allow", self.allow)
        ):
            return True
        return _any_rule_matches(self.plain_http, host, port) or (
            not isinstance(host, str) and _any_rule_matches(self.allow, host, port)
        )

    def permits_trace(self, host: Address | str, port: int) -> bool:
        return _any_rule_matches(self.trace_hosts, host, port)


def fetch_policy(settings: Settings) -> EgressPolicy:
    """Returns the policy of the HTTP client. Raises SettingError for an invalid entry."""
    parse_rules("egress_allow", settings.egress_allow)
    parse_rules("egress_http_hosts", settings.egress_http_hosts)
    parse_rules("trace_hosts", settings.trace_hosts)
    if settings.egress == "none":
        return EgressPolicy("none")
    return EgressPolicy(
        settings.egress,
        settings.egress_allow,
        plain_http=settings.egress_http_hosts,
        trace_hosts=settings.trace_hosts,
    )


def policy_for(settings: Settings, package: str | None = None) -> EgressPolicy:
    """Returns the policy for the tools of a package. Raises SettingError for an invalid entry."""
    parse_rules("egress_allow", settings.egress_allow)
    restriction = settings.package_egress.get(package) if package is not None else None
    if settings.egress == "none" or restriction == "none":
        return EgressPolicy("none")
    if restriction is None:
        return EgressPolicy(settings.egress, settings.egress_allow)
    parsed = f"package_egress: {package}"
    only = tuple(restriction.split())
    if not only or {"public", "allowlist", "none"} & {*only}:
        raise SettingError(f"{parsed}: expected `none`, or hosts separated by spaces, got {restriction!r}.")
    parse_rules(parsed, only)
    return EgressPolicy(settings.egress, settings.egress_allow, only)


def check_settings(settings: Settings) -> None:
    """Raises SettingError for the first invalid entry of any policy."""
    fetch_policy(settings)
    for package in (None, *settings.package_egress):
        policy_for(settings, package)


@lru_cache(maxsize=1024)
def parse_rules(setting: str, entries: tuple[str, ...]) -> tuple[EgressRule, ...]:
    """Parses the entries of a setting. Raises SettingError that names the setting and the entry."""
    return tuple(_parse_rule(setting, entry) for entry in entries)


def _parse_rule(setting: str, entry: str) -> EgressRule:
    match = _ENTRY.fullmatch(entry.strip())
    if match is None:
        raise SettingError(f"{setting}: {entry!r}: {_EXPECTED}.")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise SettingError(f"{setting}: {entry!r}: expected a port from 1 to 65535.")
    host = match["host"] or f"[{match['bare']}]"
    bits = match["bits"] or match["bare_bits"]
    try:
        if host.startswith("*."):
            suffix = parse_host(host[2:])
            if isinstance(suffix, str) and not bits:
                return EgressRule(suffix=f".{suffix}", port=port)
            raise ValueError("an address has no suffix")
        parsed = parse_host(host)
        if isinstance(parsed, str):
            if bits:
                raise ValueError("a name is not a network")
            return EgressRule(host=parsed, port=port)
        return EgressRule(network=ip_network(f"{parsed}{bits or ''}"), port=port)
    except ValueError as error:
        raise SettingError(f"{setting}: {entry!r}: {error}; {_EXPECTED}.") from None


def _any_rule_matches(entries: tuple[str, ...], host: Address | str, port: int | None) -> bool:
    rules = parse_rules("egress_allow", entries)
    if isinstance(host, str):
        return any(rule.is_host(host, port) or rule.has_suffix(host, port) for rule in rules)
    return any(rule.contains(host, port) for rule in rules)


def _permits_address(
    entries: tuple[str, ...], host: Address | str, port: int | None, address: Address
) -> bool:
    rules = parse_rules("egress_allow", entries)
    named = isinstance(host, str) and any(rule.is_host(host, port) for rule in rules)
    return named or any(rule.contains(address, port) for rule in rules)


def _host_text(host: Address | str) -> str:
    return f"[{host}]" if not isinstance(host, str) and host.version == 6 else str(host)


def _host_and_port(host: Address | str, port: int | None) -> str:
    return _host_text(host) if port is None else f"{_host_text(host)}:{port}"


def _operator_hint(entry: str | None = None) -> str:
    what = f"with {entry} in" if entry else "with"
    return f"the operator can allow it {what} the setting egress_allow"
