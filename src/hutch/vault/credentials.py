"""Credentials: which there can be, what is told of one, and what it is bound to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hutch.errors import InvalidInput, VaultError
from hutch.store.rows import Credential
from hutch.vault import sealing
from hutch.vault.datakeys import DataKeys

KINDS = ("header", "cookie", "auth_token", "query", "body")
IN_HEADERS = frozenset({"header", "cookie", "auth_token"})
"""The kinds whose value becomes part of a header."""
MOST_NAME_CHARS = 256
# More than servers take in a header; scrubbing costs time for every byte.
MOST_VALUE_BYTES = 16 * 1024
# A hint is no more than a quarter of the secret.
HINT_CHARS = 4
HINT_FROM_CHARS = 16

# RFC 9110, section 5.6.2: what the name of a header or a cookie is made of.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BEYOND_LATIN = re.compile(r"[^\x00-\xff]")
_SEPARATOR = re.compile(r"""[\s;,:=&"'{}\[\]()<>]""")


class Name(NamedTuple):
    """What a credential is about, with its user."""

    domain: str
    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.domain}::{self.key}"


class Secret:
    """A credential with its value, which shows in nothing that is printed."""

    __slots__ = ("credential", "value")

    def __init__(self, credential: Credential, value: str) -> None:
        self.credential = credential
        self.value = value

    def __repr__(self) -> str:
        return f"Secret({self.credential.domain}::{self.credential.key})"


def name(domain: str, kind: str, key: str) -> Name:
    """Domain and key as they are kept. `key` may be `domain::Name`. Raises InvalidInput."""
    if kind not in KINDS:
        raise InvalidInput("kind", f"expected one of {', '.join(KINDS)}, got {kind!r}.")
    host = read_domain(domain)
    before, separator, bare = key.rpartition("::")
    if separator and read_domain(before) != host:
        raise InvalidInput("key", f"it is about another domain than {host}.")
    # What stands in the place of a name by mistake may be a secret: it is not repeated.
    if not 0 < len(bare) <= MOST_NAME_CHARS or _CONTROL.search(bare):
        raise InvalidInput(
            "key", f"expected a name of 1 to {MOST_NAME_CHARS} characters without control characters."
        )
    if kind in IN_HEADERS and not _TOKEN.fullmatch(bare):
        raise InvalidInput(
            "key", "expected the name of a header or a cookie: letters, digits and -, no spaces, no value."
        )
    return Name(host, kind, bare)


def parse_name(text: str, kind: str) -> Name:
    """From `DOMAIN::NAME`. Raises InvalidInput."""
    domain, separator, key = text.rpartition("::")
    if not separator:
        raise InvalidInput("DOMAIN::NAME", "expected both, such as api.example.com::Authorization.")
    return name(domain, kind, key)


def read_domain(text: str) -> str:
    """A host as URLs have it: in lower case, encoded where it is not ASCII. Raises InvalidInput."""
    from hutch.egress.addresses import read_host

    host = text.strip()
    try:
        if not host.isascii():
            import idna

            host = idna.encode(host, uts46=True).decode()
        found = read_host(f"[{host}]" if ":" in host and not host.startswith("[") else host)
    except ValueError:
        raise InvalidInput(
            "domain", "expected the name of a host, such as api.example.com, without scheme, port or path."
        ) from None
    return str(found)


def check_value(kind: str, value: str) -> None:
    """Raises InvalidInput, which never has the value."""
    problem = _problem(kind, value)
    if problem is not None:
        raise InvalidInput("value", problem)


def _problem(kind: str, value: str) -> str | None:
    if not value:
        return "expected something, got nothing."
    if len(value) > MOST_VALUE_BYTES or len(value.encode("utf-8", "surrogatepass")) > MOST_VALUE_BYTES:
        return f"expected at most {MOST_VALUE_BYTES} bytes."
    if _SURROGATE.search(value):
        return "expected text that UTF-8 can write."
    if kind not in IN_HEADERS:
        return "it has a NUL, which no request may have." if "\0" in value else None
    if _IN_VALUE.search(value):
        return "it has a line break or another control character, which no header may have."
    if value != value.strip(" \t"):
        return "it begins or ends with a space, which no header may do."
    if _BEYOND_LATIN.search(value):
        return "it has characters beyond Latin-1, which no header may have."
    return None


def hint(value: str) -> str:
    """The last four characters, if what they are the end of is long enough not to be told by them.

    That is what stands after the last separator: of `Bearer …` the token, of cookies the last one's value.
    """
    if re.match(r"basic\s", value, re.I):
        # The end of its base64 is the end of a password.
        return ""
    last = _SEPARATOR.split(value)[-1]
    return last[-HINT_CHARS:] if len(last) >= HINT_FROM_CHARS else ""


def seal(keys: DataKeys, user_id: str, about: Name, value: str) -> str:
    """With the user's current data key; it opens for the same user, domain, kind and key alone."""
    return sealing.seal(keys, value.encode(), *_about(user_id, about))


def unseal(keys: DataKeys, credential: Credential) -> Secret:
    """Raises sealing.KeyMissing, or VaultError that names the credential."""
    about = Name(credential.domain, credential.kind, credential.key)
    try:
        value = sealing.unseal(keys, credential.sealed, *_about(credential.user_id, about))
    except sealing.KeyMissing as error:
        raise sealing.KeyMissing(error.noun, error.key_id, f"{about} ({about.kind})") from None
    except VaultError as error:
        raise VaultError(
            f"{about} ({about.kind}): {error.message}",
            remedy="Set it again with `hutch credential set`, or remove it.",
        ) from None
    return Secret(credential, value.decode())


def reseal(keys: DataKeys, credential: Credential) -> str:
    """Sealed anew with the current data key. Raises as `unseal` does."""
    about = Name(credential.domain, credential.kind, credential.key)
    return seal(keys, credential.user_id, about, unseal(keys, credential).value)


def _about(user_id: str, about: Name) -> Sequence[str]:
    # Names of headers are the same in any case, and so they are to the store.
    return ("credential", user_id, about.domain, about.kind, about.key.lower())
