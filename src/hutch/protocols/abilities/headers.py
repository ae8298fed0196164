"""Headers and credentials of a wrapper's requests: keys (`host::Name`), static values and credentials."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from hutch.egress.addresses import Url
from hutch.egress.client.headers import merge_headers
from hutch.egress.client.models import FetchError, InjectedField, InjectedHeader, Injection
from hutch.errors import InvalidInput
from hutch.protocols.abilities.definition import AbilityDefinition
from hutch.protocols.abilities.sandbox_run import AbilityRun
from hutch.session.json_value import encode_value
from hutch.session.messages import Job
from hutch.vault.credentials import Secret, normalize_domain

logger = logging.getLogger("hutch.abilities")

STATIC_TIMEOUT_MS = 1_000
STATIC_MEMORY_BYTES = 16 * 1024 * 1024

_HOST_PORT = re.compile(r"(.+):([0-9]{1,5})")

_COOKIE = "cookie"
_AUTHORIZATION = "authorization"

# The value code of most static headers is an arrow function that returns a string literal. This pattern
# extracts the literal without running the code. It accepts only unambiguous literals, without line breaks and
# without escapes other than quotes and backslashes.
_ARROW = r"[ \t\r\n]*\([ \t\r\n]*\)[ \t]*=>[ \t\r\n]*"
_LITERAL = re.compile(rf"""{_ARROW}(?:"((?:[^"\\\r\n]|\\["'\\])*)"|'((?:[^'\\\r\n]|\\["'\\])*)')[ \t\r\n]*""")
_ESCAPED = re.compile(r"""\\(["'\\])""")


# --- keys ---


class HeaderKey(msgspec.Struct, frozen=True):
    """A parsed header key (`host::Name`)."""

    text: str
    """The unparsed key."""
    name: str
    host: str | None
    """Host that the header is for, including subdomains. None if the key has no valid host."""
    port: int | None = None

    def covers(self, url: Url) -> bool:
        """Returns True if the header may be sent to this URL."""
        if self.host is None or (self.port is not None and self.port != url.port):
            return False
        return url.is_under(f"[{self.host}]" if ":" in self.host else self.host)


@lru_cache(maxsize=4096)
def parse_header_key(text: str, service_name: str) -> HeaderKey:
    """Parses a header key. A key without a host uses the service name if that is a host name."""
    host_part, separator, name = text.rpartition("::")
    if not separator:
        host_part = service_name if _is_host_name(service_name) else ""
    match = (
        _HOST_PORT.fullmatch(host_part) if host_part.count(":") == 1 or host_part.startswith("[") else None
    )
    host, port = (match[1], int(match[2])) if match is not None else (host_part, None)
    try:
        return HeaderKey(text, name, normalize_domain(host.removeprefix("[").removesuffix("]")), port)
    except InvalidInput:
        return HeaderKey(text, name, None)


def _is_host_name(service_name: str) -> bool:
    """Returns True if the service name is a host name. A single word such as `github` is not."""
    if "." not in service_name and service_name.partition(":")[0] != "localhost":
        return False
    try:
        normalize_domain(service_name.partition(":")[0])
    except InvalidInput:
        return False
    return True


def ability_domain(definition: AbilityDefinition) -> str | None:
    """Returns the host of an ability's API, taken from its service name, or else from its first key with a
    host.
    """
    keys = (*definition.dynamic_header_keys, *definition.static_header_keys)
    parsed = (parse_header_key(text, definition.service_name) for text in ("", *keys))
    return next((key.host for key in parsed if key.host is not None), None)


# --- injection ---


class WrapperHeader(msgspec.Struct, frozen=True):
    """A header value, or a credential in the query or the body, with the host that it may be sent to."""

    key: HeaderKey
    name: str
    value: str
    credential: str | None = None
    """Id of the credential that provides the value. None for static headers."""
    place: Literal["header", "query", "body"] = "header"

    def __repr__(self) -> str:
        return f"WrapperHeader({self.key.text!r})"


class HeaderInjector:
    """Adds static headers and then dynamic headers. A dynamic header replaces a static header of the same
    name.
    """

    def __init__(self, static: Sequence[WrapperHeader], dynamic: Sequence[WrapperHeader]) -> None:
        self._static = static
        self._dynamic = dynamic

    def inject(self, url: Url) -> Injection:
        """Returns the headers and fields for a URL.

        A static header without a host is sent to every URL. A credential is sent only to its host.
        """
        chosen = [header for header in self._static if header.key.host is None or header.key.covers(url)]
        fields = []
        for header in self._dynamic:
            if header.key.covers(url):
                if header.place == "header":
                    chosen.append(header)
                elif header.credential is not None:
                    fields.append(InjectedField(header.place, header.name, header.value, header.credential))
        return Injection(
            [InjectedHeader(header.name, header.value, header.credential) for header in chosen], fields
        )


# --- headers with credentials ---


class ResolvedHeaders(msgspec.Struct, kw_only=True):
    """Headers and secrets that were found for an ability, and the keys without a credential."""

    headers: list[WrapperHeader] = []
    secrets: list[Secret] = []
    """Secrets used in `headers`."""
    missing: list[HeaderKey] = []


def required_keys(definition: AbilityDefinition) -> list[HeaderKey]:
    if not definition.requires_dynamic_headers:
        return []
    return [parse_header_key(text, definition.service_name) for text in definition.dynamic_header_keys]


def credential_domains(keys: Iterable[HeaderKey]) -> list[str]:
    return list(dict.fromkeys(key.host for key in keys if key.host is not None))


def resolve_credentials(keys: Iterable[HeaderKey], secrets: Sequence[Secret]) -> ResolvedHeaders:
    resolved = ResolvedHeaders()
    for key in keys:
        candidates = [secret for secret in secrets if secret.credential.domain == key.host]
        named = [secret for secret in candidates if secret.credential.key.lower() == key.name.lower()]
        # If two credentials share a name, use the most recently updated one.
        named.sort(key=lambda secret: secret.credential.updated_at, reverse=True)
        chosen = named[:1] or [
            secret for secret in candidates if _default_header_name(secret) == key.name.lower()
        ]
        if chosen:
            for secret in chosen:
                resolved.headers.append(_credential_header(key, secret))
                resolved.secrets.append(secret)
        else:
            resolved.missing.append(key)
    return resolved


def _default_header_name(secret: Secret) -> str:
    match secret.credential.kind:
        case "cookie":
            return _COOKIE
        case "auth_token":
            return _AUTHORIZATION
    return ""


def _credential_header(key: HeaderKey, secret: Secret) -> WrapperHeader:
    credential, value = secret.credential, secret.value
    name = credential.key
    match credential.kind:
        case "query" | "body" as place:
            return WrapperHeader(key, name, value, credential.id, place)
        case "cookie":
            is_complete = name.lower() == _COOKIE or value.startswith(f"{name}=")
            return WrapperHeader(key, "Cookie", value if is_complete else f"{name}={value}", credential.id)
        case "auth_token":
            value = value if value[:7].lower() == "bearer " else f"Bearer {value}"
            return WrapperHeader(key, "Authorization", value, credential.id)
    return WrapperHeader(key, name, value, credential.id)


# --- static headers ---


async def evaluate_static_headers(
    definition: AbilityDefinition, ability_run: AbilityRun
) -> list[WrapperHeader]:
    """Computes the static headers. Headers without a valid value are omitted and logged."""
    static_headers = definition.static_headers
    if isinstance(static_headers, dict):
        pairs: list[tuple[str, str | None]] = list(static_headers.items())
    else:
        pairs = [(header.key, literal_value(header.value_code)) for header in static_headers]
        codes = [
            header.value_code
            for header, (_, known) in zip(static_headers, pairs, strict=True)
            if known is None
        ]
        if codes:
            computed = iter(await _run_codes(codes, ability_run))
            pairs = [(key, next(computed) if known is None else known) for key, known in pairs]
    headers = [_static_header(definition, key, value) for key, value in pairs]
    return [header for header in headers if header is not None]


def literal_value(code: str) -> str | None:
    """Returns the value of code such as `() => "v"`, or None for any other code."""
    match = _LITERAL.fullmatch(code)
    if match is None:
        return None
    return _ESCAPED.sub(r"\1", match[1] if match[1] is not None else match[2])


async def _run_codes(codes: Sequence[str], ability_run: AbilityRun) -> list[str | None]:
    """Runs the value codes of static headers in one execution, without network access and without the call's
    parameters.
    """
    job = Job("headers", encode_value(codes).decode())
    result = await ability_run.run(
        "", job, "headers", timeout_ms=STATIC_TIMEOUT_MS, memory_bytes=STATIC_MEMORY_BYTES
    )
    values = result.result if isinstance(result.result, list) else []
    if result.error is not None:
        logger.warning("the static headers of %s have no values: %s", ability_run.label, result.error.code)
    return [_string_value(values[index] if index < len(values) else None) for index in range(len(codes))]


def _string_value(result: Any) -> str | None:
    value = result.get("value") if isinstance(result, dict) else None
    return value if isinstance(value, str) else None


def _static_header(definition: AbilityDefinition, text: str, value: str | None) -> WrapperHeader | None:
    key = parse_header_key(text, definition.service_name)
    reason = "its code returned no string" if value is None else _header_error(key.name, value)
    if value is None or reason is not None or (key.host is None and "::" in text):
        reason = reason or "its key has no valid host"
        logger.warning("%s: the static header %s was left out: %s", definition.ability_id, text, reason)
        return None
    return WrapperHeader(key, key.name, value)


def _header_error(name: str, value: str) -> str | None:
    try:
        merge_headers([InjectedHeader(name, value)], ())
    except FetchError as error:
        return error.message
    return None
