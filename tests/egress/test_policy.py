from __future__ import annotations

from ipaddress import ip_address

import pytest

from hutch.egress.addresses import parse_host
from hutch.egress.policy import EgressPolicy, EgressRefused, check_settings, policy_for
from hutch.errors import SettingError
from hutch.settings import Settings


def refused(policy: EgressPolicy, host: str, port: int | None, address: str | None = None) -> str | None:
    """Returns the reason why the policy refuses a host with this address, or None. Without `address`, `host`
    is the address.
    """
    where = parse_host(host)
    try:
        policy.check_host(where, port)
    except EgressRefused as error:
        return error.message
    return policy.refusal(where, port, ip_address(address) if address or isinstance(where, str) else where)


def test_none_refuses_everything() -> None:
    assert (
        refused(EgressPolicy("none", ("1.1.1.1",)), "1.1.1.1", 443) == "Network access is off for this tool."
    )


def test_without_a_port_a_host_is_permitted_if_any_of_its_ports_is() -> None:
    assert refused(EgressPolicy("public"), "example.com", None, "1.1.1.1") is None
    assert "a private address" in (refused(EgressPolicy("public"), "example.com", None, "10.0.0.1") or "")
    allowed = EgressPolicy("allowlist", ("db.example:5432", "10.1.0.0/16:80"))
    assert refused(allowed, "db.example", None, "10.0.0.1") is None
    assert refused(allowed, "other.example", None, "1.1.1.1") == (
        "other.example is not in the list of permitted hosts; "
        "the operator can allow it with the setting egress_allow."
    )
    only = EgressPolicy("public", (), ("*.example.com:443",))
    assert refused(only, "a.example.com", None, "1.1.1.1") is None
    assert refused(only, "a.example.com", None, "10.0.0.1") is not None
    assert refused(only, "example.org", None, "1.1.1.1") is not None
    assert refused(EgressPolicy("none"), "example.com", None, "1.1.1.1") is not None


def test_public_permits_public_addresses_and_explains_refusals() -> None:
    policy = EgressPolicy("public")
    assert refused(policy, "example.com", 443, "1.1.1.1") is None
    assert refused(policy, "1.1.1.1", 8080) is None
    assert refused(policy, "api.example.com", 443, "10.0.0.1") == (
        "api.example.com resolves to 10.0.0.1, a private address; "
        "the operator can allow it with the setting egress_allow."
    )
    assert refused(policy, "0x7f.1", 80) == (
        "127.0.0.1 is a loopback address; the operator can allow it with the setting egress_allow."
    )
    assert "[fd00:ec2::254] is a metadata address" in (refused(policy, "[fd00:ec2::254]", 80) or "")


def test_public_refuses_ports_of_other_protocols_unless_allowed() -> None:
    assert refused(EgressPolicy("public"), "example.com", 25, "1.1.1.1") == (
        "Port 25 is not an HTTP port; "
        "the operator can allow it with example.com:25 in the setting egress_allow."
    )
    assert refused(EgressPolicy("public", ("example.com:25",)), "example.com", 25, "1.1.1.1") is None


def test_named_host_is_permitted_at_any_address() -> None:
    policy = EgressPolicy("public", ("db.internal:5432", "any.internal"))
    assert refused(policy, "DB.internal.", 5432, "10.0.0.1") is None
    assert refused(policy, "db.internal", 5433, "10.0.0.1") is not None
    assert refused(policy, "any.internal", 1234, "127.0.0.1") is None
    assert refused(policy, "x.any.internal", 1234, "127.0.0.1") is not None


def test_named_address_or_network_is_permitted_for_any_name() -> None:
    policy = EgressPolicy("public", ("10.1.0.0/16:80", "127.0.0.1:8080", "[fd00::1]:80", "fd01::/16", "::1"))
    assert refused(policy, "10.1.2.3", 80) is None
    assert refused(policy, "name.example", 80, "10.1.2.3") is None
    assert refused(policy, "10.1.2.3", 81) is not None
    assert refused(policy, "10.2.0.1", 80) is not None
    assert refused(policy, "2130706433", 8080) is None
    assert refused(policy, "[::ffff:127.0.0.1]", 8080) is None
    assert refused(policy, "[fd00::1]", 80) is None
    assert refused(policy, "[fd01::5]", 81) is None
    assert refused(policy, "[::1]", 81) is None


def test_allowlist_permits_nothing_else() -> None:
    policy = EgressPolicy("allowlist", ("api.example.com:443", "*.example.org", "1.1.1.1"))
    assert refused(policy, "api.example.com", 443, "1.2.3.4") is None
    assert refused(policy, "x.example.org", 8443, "1.2.3.4") is None
    assert refused(policy, "1.1.1.1", 53) is None
    assert refused(policy, "api.example.com", 80, "1.2.3.4") == (
        "api.example.com:80 is not in the list of permitted hosts; "
        "the operator can allow it with the setting egress_allow."
    )
    assert refused(policy, "example.org", 443, "1.2.3.4") is not None
    assert refused(policy, "badexample.org", 443, "1.2.3.4") is not None
    assert refused(policy, "8.8.8.8", 443) is not None


def test_allowlist_refuses_a_name_before_resolving_it() -> None:
    """A DNS query could leak data, because the name in the query can contain the data."""
    with pytest.raises(EgressRefused, match=r"secret\.evil\.example:443 is not in the list"):
        EgressPolicy("allowlist", ("10.0.0.0/8", "api.example.com")).check_host("secret.evil.example", 443)


def test_suffix_permits_names_but_not_internal_addresses() -> None:
    policy = EgressPolicy("allowlist", ("*.example.com",))
    assert refused(policy, "x.example.com", 443, "1.1.1.1") is None
    assert "a private address" in (refused(policy, "x.example.com", 443, "10.0.0.1") or "")
    assert (
        refused(EgressPolicy("allowlist", ("*.example.com", "10.0.0.0/8")), "x.example.com", 443, "10.0.0.1")
        is None
    )


def test_package_is_restricted_to_its_hosts() -> None:
    settings = Settings(package_egress={"@a/b": "api.example.com:443  *.example.org", "quiet": "none"})
    policy = policy_for(settings, "@a/b")
    assert refused(policy, "api.example.com", 443, "1.1.1.1") is None
    assert refused(policy, "x.example.org", 443, "1.1.1.1") is None
    assert refused(policy, "other.example", 443, "1.1.1.1") == (
        "other.example:443 is not permitted for this package; "
        "the operator can add it to the setting package_egress."
    )
    assert refused(policy, "1.1.1.1", 443) is not None
    assert policy_for(settings, "quiet") == EgressPolicy("none")
    assert policy_for(settings, "another") == policy_for(settings) == EgressPolicy("public")


def test_package_is_never_permitted_more_than_the_server() -> None:
    wider = {"p": "127.0.0.1:80 inside.example api.example.com"}
    policy = policy_for(Settings(package_egress=wider), "p")
    assert "a loopback address" in (refused(policy, "127.0.0.1", 80) or "")
    assert "a private address" in (refused(policy, "inside.example", 80, "10.0.0.1") or "")
    listed = policy_for(
        Settings(egress="allowlist", egress_allow=("api.example.com",), package_egress=wider), "p"
    )
    assert refused(listed, "api.example.com", 443, "1.1.1.1") is None
    assert "is not in the list" in (refused(listed, "inside.example", 80, "1.1.1.1") or "")
    assert policy_for(Settings(egress="none", package_egress=wider), "p") == EgressPolicy("none")


def test_server_exception_applies_to_a_package_that_names_it() -> None:
    settings = Settings(egress_allow=("127.0.0.1:8080",), package_egress={"p": "127.0.0.1"})
    assert refused(policy_for(settings, "p"), "127.0.0.1", 8080) is None
    assert refused(policy_for(settings, "p"), "127.0.0.1", 8081) is not None


def test_equal_policies_have_equal_hashes() -> None:
    settings = Settings(egress_allow=("a.example",), package_egress={"p": "a.example"})
    assert len({policy_for(settings, "p"), policy_for(settings, "p"), policy_for(settings)}) == 2


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "",
            "http://example.com",
            "example.com/path",
            "a b",
            "host:0",
            "host:65536",
            "host:x",
            "*",
            "*:443",
        ),
        *("*.*.example.com", "*.1.2.3.4", "10.0.0.1/8", "10.0.0.0/33", "name/8", "[::1", "::1:80:", "[::g]"),
        *("[fe80::1%eth0]", "bücher.example", "user@host", "256.1.1.1", "*.example.com/8"),
    ],
)
def test_invalid_entry_is_named_in_the_error(entry: str) -> None:
    with pytest.raises(SettingError) as caught:
        policy_for(Settings(egress_allow=("fine.example", entry)))
    assert caught.value.message.startswith(f"egress_allow: {entry!r}: ")


@pytest.mark.parametrize("value", ["", "public", "allowlist", "none api.example.com", "http://x"])
def test_invalid_package_egress_is_an_error(value: str) -> None:
    with pytest.raises(SettingError, match="package_egress: @a/b: "):
        check_settings(Settings(package_egress={"fine": "none", "@a/b": value}))
