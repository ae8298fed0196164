"""Makes abilities from a HAR file, in which a browser or a proxy recorded requests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult

import msgspec

from hutch.cli.ability_import.models import (
    MAX_ABILITIES,
    ImportedAbility,
    ImportResult,
    decode_json,
)
from hutch.cli.ability_import.recorded import (
    PathParameter,
    RecordedRequest,
    RequestImporter,
    looks_secret,
    parse_url,
)
from hutch.errors import InvalidAbility, InvalidInput
from hutch.protocols.abilities.definition import parse_definition
from hutch.text import cut

MAX_HAR_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 20_000
_OPTION = "--har"
# Path segments that are ids. They differ from one call to the next, so they become parameters.
_ID = re.compile(r"[0-9]+|[0-9a-f]{16,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
# Headers that are left out, because they describe the browser and the page, not the request to the API. The
# URL in `Referer` may contain secrets.
_BROWSER_HEADERS = re.compile(
    r":.*|sec-.*|if-.*|accept-language|cache-control|dnt|origin|pragma|priority|range|referer|te"
    r"|upgrade-insecure-requests|user-agent",
    re.I,
)
_NO_CREDENTIALS = (
    "no request contains credentials. Browsers leave them out of a HAR file unless it is exported with"
    " sensitive data"
)


class _Group(msgspec.Struct):
    """Requests with the same method, host and path."""

    method: str
    importer: RequestImporter


def import_har(text: str) -> ImportResult:
    """Converts the calls of APIs in a HAR file. Raises InvalidInput, whose message contains no values."""
    har = decode_json(_OPTION, text)
    log = har.get("log") if isinstance(har, dict) else None
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list):
        raise InvalidInput(_OPTION, "expected a HAR file, an object with log.entries.")
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(_OPTION, f"expected at most {MAX_ENTRIES} entries, got {len(entries)}.")
    groups: dict[tuple[str, ...], _Group] = {}
    left_out: Counter[str] = Counter()
    for entry in entries:
        try:
            reason = _add_entry(groups, entry)
        except InvalidInput as error:
            reason = str(error).removeprefix(f"{_OPTION}: ")
        if reason:
            left_out[reason] += 1
    abilities: list[ImportedAbility] = []
    notes: list[str] = []
    for group in groups.values():
        taken = [ability.ability_id for ability in abilities]
        try:
            ability = group.importer.ability(group.method, None, taken)
            parse_definition(ability.definition)
        except InvalidAbility as error:
            notes.append(f"left out {group.method} of a URL: {cut(error.problems[0], 200)}")
        except InvalidInput as error:
            notes.append(f"left out {cut(group.method, 40)!r}: {error}")
        else:
            abilities.append(ability)
    notes += [f"left out {count} of {len(entries)} entries: {reason}" for reason, count in left_out.items()]
    if abilities and not any(ability.credentials for ability in abilities):
        notes.append(_NO_CREDENTIALS)
    return ImportResult(abilities, notes)


def _add_entry(groups: dict[tuple[str, ...], _Group], entry: Any) -> str | None:
    """Adds an entry to its group. Returns the reason if it is left out. Raises InvalidInput."""
    request = _member(entry, "request")
    method, url = request.get("method"), request.get("url")
    if not isinstance(method, str) or not isinstance(url, str):
        return "they have no method or no URL"
    content_type = str(_member(_member(entry, "response"), "content").get("mimeType", ""))
    if method == "OPTIONS" or (method in ("GET", "HEAD") and "json" not in content_type.lower()):
        return "they are not calls of an API (a GET without a JSON response, or OPTIONS)"
    parts = parse_url(_OPTION, url)
    path = list(_template(parts))
    key = (method, parts.scheme, parts.netloc, *(each if isinstance(each, str) else "" for each in path))
    group = groups.get(key)
    if group is None:
        if len(groups) == MAX_ABILITIES:
            return f"the maximum is {MAX_ABILITIES} abilities"
        group = _Group(method, RequestImporter(_OPTION, parts, path))
    group.importer.add(_recorded(request), parts.query)
    groups[key] = group
    return None


def _template(parts: SplitResult) -> Iterator[str | PathParameter]:
    """Yields the segments of a path. Segments that are ids or look like secrets become parameters."""
    names: set[str] = set()
    before = ""
    for segment in (parts.path or "/").split("/")[1:]:
        if _ID.fullmatch(segment) or looks_secret(segment):
            name = f"{re.sub(r'[^A-Za-z0-9]+', '_', before).strip('_') or 'path'}_id"
            unique, number = name, 1
            while unique in names:
                number += 1
                unique = f"{name}_{number}"
            names.add(unique)
            yield PathParameter(unique)
        else:
            yield segment
        before = segment


def _recorded(request: dict[str, Any]) -> RecordedRequest:
    recorded = RecordedRequest()
    for header in request.get("headers") or ():
        name, value = _member(header, None).get("name"), _member(header, None).get("value")
        if isinstance(name, str) and isinstance(value, str) and not _BROWSER_HEADERS.fullmatch(name):
            recorded.headers.append((name, value))
    post_data = _member(request, "postData")
    body, content_type = post_data.get("text"), post_data.get("mimeType")
    if isinstance(body, str) and body:
        recorded.body = body
        if isinstance(content_type, str) and "content-type" not in {
            name.lower() for name, _ in recorded.headers
        }:
            recorded.headers.append(("Content-Type", content_type))
    return recorded


def _member(value: Any, name: str | None) -> dict[str, Any]:
    """Returns the member `name` of a value, or the value itself if `name` is None. Returns an empty object if
    the result is not an object.
    """
    member = value if name is None else value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, dict) else {}
