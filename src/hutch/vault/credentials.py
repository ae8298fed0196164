"""Credentials: names, validation, hints and encryption."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hutch.errors import InvalidInput, VaultError
from hutch.store.models import Credential
from hutch.text import has_control_character
from hutch.vault import crypto
from hutch.vault.data_keys import DataKeys

KINDS = ("header", "cookie", "auth_token", "query", "body")
HEADER_KINDS = frozenset({"header", "cookie", "auth_token"})
"""Kinds of credentials whose value becomes part of a header."""
MAX_NAME_CHARS = 256
# This is more than servers accept in a header. A limit is needed because redaction takes up to 1 KiB of
# memory per character.
MAX_VALUE_BYTES = 16 * 1024
# A hint shows the last four characters of a secret. Secrets with less than 16 characters have no hint, so a
# hint shows at most a quarter of the secret.
HINT_CHARS = 4
MIN_CHARS_FOR_HINT = 16

# Allowed characters of header and cookie names (RFC 9110, section 5.6.2).
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BEYOND_LATIN = re.compile(r"[^\x00-\xff]")
_SEPARATOR = re.compile(r"""[\s;,:=&"'{}\[\]()<>]""")


class CredentialName(NamedTuple):
    domain: str
    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.domain}::{self.key}"


class Secret:
    """Credential with its decrypted value, which never appears in `repr`."""

    __slots__ = ("credential", "value")

    def __init__(self, credential: Credential, value: str) -> None:
        self.credential = credential
        self.value = value

    def __repr__(self) -> str:
        return f"Secret({self.credential.domain}::{self.credential.key})"


def make_name(domain: str, kind: str, key: str) -> CredentialName:
    """Validates and normalises the name of a credential. `key` may be `domain::Name`. Raises InvalidInput."""
    if kind not in KINDS:
        raise InvalidInput("kind", f"expected one of {', '.join(KINDS)}, got {kind!r}.")
    host = normalize_domain(domain)
    before, separator, bare = key.rpartition("::")
    if separator and normalize_domain(before) != host:
        raise InvalidInput("key", f"it is for another domain than {host}.")
    # The message does not quote the key, because a user may have entered the secret by mistake.
    if not 0 < len(bare) <= MAX_NAME_CHARS or has_control_character(bare):
        raise InvalidInput(
            "key", f"expected a name of 1 to {MAX_NAME_CHARS} characters without control characters."
        )
    if kind in HEADER_KINDS and not _TOKEN.fullmatch(bare):
        raise InvalidInput(
            "key", "expected the name of a header or a cookie: letters, digits and -, no spaces, no value."
        )
    return CredentialName(host, kind, bare)


def parse_name(text: str, kind: str) -> CredentialName:
    """Parses `DOMAIN::NAME`. Raises InvalidInput."""
    domain, separator, key = text.rpartition("::")
    if not separator:
        raise InvalidInput("DOMAIN::NAME", "expected both, such as api.example.com::Authorization.")
    return make_name(domain, kind, key)


def normalize_domain(text: str) -> str:
    """Normalises a host to lower case and IDNA encoding. Raises InvalidInput."""
    from hutch.egress.addresses import parse_host

    host = text.strip()
    try:
        if not host.isascii():
            import idna

            host = idna.encode(host, uts46=True).decode()
        parsed = parse_host(f"[{host}]" if ":" in host and not host.startswith("[") else host)
    except ValueError:
        raise InvalidInput(
            "domain", "expected the name of a host, such as api.example.com, without scheme, port or path."
        ) from None
    return str(parsed)


def check_value(kind: str, value: str) -> None:
    """Checks the value of a credential. Raises InvalidInput, whose message does not contain the value."""
    problem = _problem(kind, value)
    if problem is not None:
        raise InvalidInput("value", problem)


def _problem(kind: str, value: str) -> str | None:
    if not value:
        return "expected a value, got nothing."
    if len(value) > MAX_VALUE_BYTES or len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
        return f"expected at most {MAX_VALUE_BYTES} bytes."
    if _SURROGATE.search(value):
        return "expected text that can be encoded as UTF-8."
    if kind not in HEADER_KINDS:
        return "it contains a NUL character." if "\0" in value else None
    if _IN_VALUE.search(value):
        return "it contains a line break or another control character, which headers cannot contain."
    if value != value.strip(" \t"):
        return "it starts or ends with a space, which headers cannot."
    if _BEYOND_LATIN.search(value):
        return "it contains characters outside Latin-1, which headers cannot contain."
    return None


def hint(value: str) -> str:
    """Returns the last four characters of the value, or an empty text if they would reveal too much.

    If the value has several parts, the last part counts: the token of `Bearer …`, or the value of the last
    cookie.
    """
    if re.match(r"basic\s", value, re.I):
        # Show nothing, because the value is Base64 that ends with the password.
        return ""
    last = _SEPARATOR.split(value)[-1]
    return last[-HINT_CHARS:] if len(last) >= MIN_CHARS_FOR_HINT else ""


def encrypt(keys: DataKeys, user_id: str, name: CredentialName, value: str) -> str:
    """Encrypts a value with the user's current data key, and binds it to the user, domain, kind and key."""
    return crypto.encrypt(keys, value.encode(), *_context(user_id, name))


def decrypt(keys: DataKeys, credential: Credential) -> Secret:
    """Decrypts a credential. Raises crypto.KeyMissing, or VaultError that names the credential."""
    name = CredentialName(credential.domain, credential.kind, credential.key)
    try:
        value = crypto.decrypt(keys, credential.sealed, *_context(credential.user_id, name))
    except crypto.KeyMissing as error:
        raise crypto.KeyMissing(error.noun, error.key_id, f"{name} ({name.kind})") from None
    except VaultError as error:
        raise VaultError(
            f"{name} ({name.kind}): {error.message}",
            remedy="Set it again with `hutch credential set`, or remove it.",
        ) from None
    return Secret(credential, value.decode())


def reencrypt(keys: DataKeys, credential: Credential) -> str:
    """Returns the value encrypted again with the current data key. Raises like `decrypt`."""
    name = CredentialName(credential.domain, credential.kind, credential.key)
    return encrypt(keys, credential.user_id, name, decrypt(keys, credential).value)


def _context(user_id: str, name: CredentialName) -> Sequence[str]:
    # Convert to lower case, because names are compared without regard to case, like header names.
    return ("credential", user_id, name.domain, name.kind, name.key.lower())
