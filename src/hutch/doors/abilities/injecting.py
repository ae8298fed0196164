"""What is added to a wrapper's requests, decided for each by whom it goes to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hutch.doors.abilities.keys import Key
from hutch.egress.fetch import Injected, Injection
from hutch.egress.urls import Url


class Header(msgspec.Struct, frozen=True):
    """A header with its value, and for whom it is."""

    key: Key
    name: str
    value: str
    credential: str | None = None
    """The id of the credential that the value is of."""

    def __repr__(self) -> str:
        return f"Header({self.key.text!r})"


class Injecting:
    """An `Injector`: static headers first, which dynamic ones of the same name replace."""

    def __init__(self, static: Sequence[Header], dynamic: Sequence[Header]) -> None:
        self._static = static
        self._dynamic = dynamic

    def headers(self, url: Url) -> Injection:
        """A static header whose key names no host goes everywhere; a credential never does."""
        chosen = [each for each in self._static if each.key.host is None or each.key.covers(url)]
        chosen += [each for each in self._dynamic if each.key.covers(url)]
        return Injection([Injected(each.name, each.value, each.credential) for each in chosen])
