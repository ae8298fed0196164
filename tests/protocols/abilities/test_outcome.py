"""Decides from the responses of a run which credentials an API has accepted or rejected."""

from __future__ import annotations

import pytest

from hutch.egress.client.models import RequestLogEntry
from hutch.errors import SettingError
from hutch.protocols.abilities.outcome import credential_outcomes, parse_statuses

DEFAULT_STATUSES = frozenset({401, 403, 407})


def hop(status: int | None, *credentials: str) -> RequestLogEntry:
    return RequestLogEntry(method="GET", host="h", path="/", status=status, credentials=credentials)


def test_last_response_per_credential_counts() -> None:
    hops = [hop(401, "a", "b"), hop(200, "b"), hop(200, "c"), hop(403, "c"), hop(500, "a"), hop(None, "a")]
    outcomes = credential_outcomes(hops, DEFAULT_STATUSES)
    assert set(outcomes.rejected) == {"a", "c"}
    assert outcomes.accepted == {"b"}
    assert outcomes.last_status == 403


def test_redirect_does_not_count() -> None:
    outcomes = credential_outcomes([hop(401, "a"), hop(302, "a"), hop(401)], DEFAULT_STATUSES)
    assert set(outcomes.rejected) == {"a"}
    assert outcomes.accepted == set()


def test_nothing_is_rejected_without_credentials() -> None:
    assert credential_outcomes([hop(401), hop(403)], DEFAULT_STATUSES).last_status is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("401,403,407", DEFAULT_STATUSES),
        (" 401 , 403-405 ", {401, 403, 404, 405}),
        ("401-499", set(range(401, 500))),
        ("", set()),
    ],
)
def test_statuses_are_parsed_as_list_or_range(text: str, expected: set[int]) -> None:
    assert parse_statuses(text) == expected


@pytest.mark.parametrize("text", ["x", "401-", "-401", "499-401", "200", "401-600", "4O1", "401.5"])
def test_invalid_statuses_raise_a_setting_error(text: str) -> None:
    with pytest.raises(SettingError, match="ability_expire_on"):
        parse_statuses(text)
