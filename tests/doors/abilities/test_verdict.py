"""What statuses say of credentials."""

from __future__ import annotations

import pytest

from hutch.doors.abilities.verdict import judge, statuses
from hutch.egress.fetch import Hop
from hutch.errors import SettingError

USUAL = frozenset({401, 403, 407})


def hop(status: int | None, *credentials: str) -> Hop:
    return Hop(method="GET", host="h", path="/", status=status, credentials=credentials)


def test_the_last_word_on_each_credential_counts() -> None:
    hops = [hop(401, "a", "b"), hop(200, "b"), hop(200, "c"), hop(403, "c"), hop(500, "a"), hop(None, "a")]
    verdict = judge(hops, USUAL)
    assert set(verdict.refused) == {"a", "c"}
    assert verdict.taken == {"b"}
    assert verdict.status == 403


def test_a_redirect_says_nothing() -> None:
    verdict = judge([hop(401, "a"), hop(302, "a"), hop(401)], USUAL)
    assert set(verdict.refused) == {"a"}
    assert verdict.taken == set()


def test_without_credentials_nothing_is_refused() -> None:
    assert judge([hop(401), hop(403)], USUAL).status is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("401,403,407", USUAL),
        (" 401 , 403-405 ", {401, 403, 404, 405}),
        ("401-499", set(range(401, 500))),
        ("", set()),
    ],
)
def test_statuses_are_listed_or_a_range(text: str, expected: set[int]) -> None:
    assert statuses(text) == expected


@pytest.mark.parametrize("text", ["x", "401-", "-401", "499-401", "200", "401-600", "4O1", "401.5"])
def test_what_are_no_statuses_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingError, match="ability_expire_on"):
        statuses(text)
