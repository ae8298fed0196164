"""URLs as the broker reads them: strictly, so that what was checked is what is asked."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import msgspec

from hutch.egress.addresses import read_host

MAX_URL = 16 * 1024
PORTS = {"http": 80, "https": 443}

# No user names, no backslashes, no spaces, nothing beyond ASCII: each is read differently somewhere.
_URL = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<host>\[[^\[\]/?#@\\]*\]|[^:\[\]/?#@\\]+)(?::(?P<port>[0-9]{0,5}))?"
    r"(?P<path>/[^?#\\]*)?(?P<query>\?[^#]*)?(?:#(?P<fragment>.*))?"
)
_VISIBLE = re.compile(r"[\x21-\x7e]*")
_UNSAFE = re.compile(rb"[^\x21-\x7e]")


class Url(msgspec.Struct, frozen=True):
    """A place to ask: `host` is a name in lower case or an address in its usual form."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as they are sent."""
    fragment: str = ""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """What `Host` says: without a port that goes without saying."""
        return self.host if self.port == PORTS[self.scheme] else f"{self.host}:{self.port}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def is_under(self, domain: str) -> bool:
        """Whether the host is this one or below it. Nothing is below an address; and what is below a name
        without a dot, such as `com`, is everybody's."""
        domain = domain.lower().removesuffix(".")
        if self.host == domain:
            return True
        is_address = self.host.rpartition(".")[2].isdigit()
        return "." in domain and not is_address and self.host.endswith(f".{domain}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse(text: str) -> Url:
    """Raises ValueError, which says what is wrong without repeating it: a URL may have a secret in it."""
    if len(text) > MAX_URL:
        raise ValueError(f"it is longer than {MAX_URL} characters")
    if not _VISIBLE.fullmatch(text):
        raise ValueError("it has characters that have to be encoded")
    found = _URL.fullmatch(text)
    if found is None:
        if re.match(r"[A-Za-z]+://[^/?#]*@", text):
            raise ValueError("it has a user name in it, which belongs into a header")
        raise ValueError("expected https://host/path")
    scheme = found["scheme"].lower()
    if scheme not in PORTS:
        raise ValueError(f"{scheme}: is not a scheme that can be fetched")
    where = read_host(found["host"])
    host = where if isinstance(where, str) else f"[{where}]" if where.version == 6 else str(where)
    port = int(found["port"]) if found["port"] else PORTS[scheme]
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port")
    return Url(scheme, host, port, (found["path"] or "/") + (found["query"] or ""), found["fragment"] or "")


def follow(base: Url, location: bytes) -> Url:
    """Where a redirect leads. What servers leave unencoded there is encoded. Raises ValueError."""
    given = _UNSAFE.sub(lambda found: b"%%%02X" % ord(found[0]), location.strip(b" \t"))
    url = parse(urljoin(str(base), given.decode("ascii")))
    return url if url.fragment else msgspec.structs.replace(url, fragment=base.fragment)
