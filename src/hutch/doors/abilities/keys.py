"""`host::Name`: which header, and for whom."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from hutch.egress.urls import Url
from hutch.errors import InvalidInput
from hutch.vault.credentials import read_domain

_PORT = re.compile(r"(.+):([0-9]{1,5})")


class Key(msgspec.Struct, frozen=True):
    """A header's key, read."""

    text: str
    """As its author wrote it."""
    name: str
    host: str | None
    """Whom it is for, with all that is below; None if its author did not say, or said nothing sensible."""
    port: int | None = None

    def covers(self, url: Url) -> bool:
        """Whether it is for whoever is asked there."""
        if self.host is None or (self.port is not None and self.port != url.port):
            return False
        return url.is_under(f"[{self.host}]" if ":" in self.host else self.host)


@lru_cache(maxsize=4096)
def read(text: str, service_name: str) -> Key:
    """A bare name is about the service, if that is called like a host."""
    before, separator, name = text.rpartition("::")
    if not separator:
        before = service_name if is_host(service_name) else ""
    found = _PORT.fullmatch(before) if before.count(":") == 1 or before.startswith("[") else None
    host, port = (found[1], int(found[2])) if found is not None else (before, None)
    try:
        return Key(text, name, read_domain(host.removeprefix("[").removesuffix("]")), port)
    except InvalidInput:
        return Key(text, name, None)


def is_host(service_name: str) -> bool:
    """A single word names a service, not a host."""
    if "." not in service_name and service_name.partition(":")[0] != "localhost":
        return False
    try:
        read_domain(service_name.partition(":")[0])
    except InvalidInput:
        return False
    return True
