"""Limits on connections: which connection is closed when a new one exceeds a limit."""

from __future__ import annotations

import pytest

from hutch.http.server import connections
from hutch.http.server.connections import ConnectionLimits, ConnectionSlot

LOCAL = "127.0.0.1"


class Connections:
    """Opens named connections, and records the names of the connections that the limits close."""

    def __init__(self, max_connections: int, max_per_address: int) -> None:
        self.limits = ConnectionLimits(max_connections, max_per_address)
        self.closed: list[str] = []

    def open(self, name: str, address: str, *, busy: bool = False) -> ConnectionSlot | None:
        slot = self.limits.open(address, lambda: self.closed.append(name))
        if slot is not None and busy:
            slot.set_waiting(False)
        return slot


def test_connection_that_waits_longest_is_closed_for_a_new_one() -> None:
    made = Connections(3, 3)
    first = made.open("first", LOCAL)
    assert first is not None
    made.open("busy", LOCAL, busy=True)
    made.open("second", LOCAL)
    first.set_waiting(False)
    first.set_waiting(True)
    assert made.open("third", LOCAL)
    assert made.open("fourth", LOCAL)
    assert made.closed == ["second", "first"]
    assert made.limits.connections == 3


def test_new_connection_is_refused_if_all_are_busy() -> None:
    made = Connections(2, 2)
    slots = [made.open("busy", LOCAL, busy=True) for _ in range(2)]
    assert made.open("new", LOCAL) is None
    assert slots[0] is not None
    slots[0].release()
    slots[0].release()
    assert made.open("new", LOCAL)
    assert made.closed == []


def test_address_over_its_limit_loses_its_own_connections() -> None:
    made = Connections(100, 2)
    made.open("other", "192.0.2.1")
    for name in ("a", "b", "c"):
        assert made.open(name, "192.0.2.2")
    assert made.closed == ["a"]
    busy = Connections(100, 2)
    busy.open("other", "192.0.2.1")
    for _ in range(2):
        busy.open("busy", "192.0.2.2", busy=True)
    assert busy.open("new", "192.0.2.2") is None
    assert busy.open("other", "192.0.2.1")
    assert busy.closed == []


def test_other_machines_leave_connections_for_loopback() -> None:
    made = Connections(40, 1_000)
    opened = [made.open("busy", f"192.0.2.{number}", busy=True) for number in range(40)]
    assert sum(slot is not None for slot in opened) == 30
    assert all(made.open("operator", LOCAL, busy=True) for _ in range(10))
    assert made.open("operator", LOCAL) is None


def test_loopback_has_no_limit_per_address() -> None:
    made = Connections(10, 1)
    for address in (LOCAL, "::1", "::ffff:127.0.0.1"):
        assert all(made.open("proxy", address, busy=True) for _ in range(2))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "", True),
    ],
)
def test_addresses_of_one_client_are_counted_together(one: str, other: str, same: bool) -> None:
    made = Connections(100, 1)
    assert made.open("one", one, busy=True)
    assert (made.open("other", other) is None) == same


def test_limit_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connections(1, 1)
    for _ in range(50):
        made.open("idle", LOCAL)
    assert [record.getMessage() for record in caplog.records] == [
        "the limit on connections is reached (max_connections=1, all addresses)"
    ]
    monkeypatch.setattr(connections, "LOG_SECONDS", 0.0)
    made.open("idle", LOCAL)
    assert len(caplog.records) == 2


def test_closed_connections_do_not_count() -> None:
    made = Connections(1, 1)
    for _ in range(3):
        slot = made.open("closed", "192.0.2.1", busy=True)
        assert slot is not None
        slot.release()
        slot.set_waiting(True)
    made.open("open", LOCAL, busy=True)
    assert made.open("new", LOCAL) is None
    assert made.limits.connections == 1
