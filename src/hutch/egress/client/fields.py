"""Adds credentials to the query or to the body of a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, quote_plus

import msgspec

from hutch.egress.addresses import Url
from hutch.egress.client.models import FetchError, Headers, InjectedField

# Maximum size of a JSON body to which fields are added. Decoding the names of a JSON object takes up to 40 ms
# for each MiB.
MAX_MERGED_BODY_BYTES = 1024 * 1024

_FORM_TYPE = "application/x-www-form-urlencoded"
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class MergedFields(msgspec.Struct, frozen=True):
    """What to send: the path with its query, the body, and the ids of the credentials in them."""

    target: str
    body: bytes | None
    credentials: tuple[str, ...]


def merge_fields(
    fields: Sequence[InjectedField], url: Url, headers: Headers, body: bytes | None
) -> MergedFields:
    """Adds fields to the query and the body. A field that the guest sets itself is not replaced.

    A request without a body gets no fields in the body. Raises FetchError if there is a body that is neither
    a JSON object nor a form.
    """
    target, ids = url.target, []
    in_body = []
    for field in fields:
        if field.place == "body":
            in_body.append(field)
        elif not _has_pair(target.partition("?")[2], field.name):
            separator = "&" if "?" in target else "?"
            target += f"{separator}{_encode_pair(field)}"
            ids.append(field.credential)
    if in_body and body is not None:
        body, body_ids = _add_to_body(in_body, _media_type(headers), body)
        ids += body_ids
    return MergedFields(target, body, tuple(dict.fromkeys(ids)))


def without_fields(url: Url, fields: Sequence[InjectedField]) -> Url:
    """Removes the added query fields from the URL of a redirect. Many servers repeat the query of the request
    in this URL, even if it leads to another host.
    """
    path, mark, query = url.target.partition("?")
    added = {form for field in fields if field.place == "query" for form in _pair_forms(field)}
    pairs = query.split("&")
    kept = [pair for pair in pairs if pair not in added]
    if len(kept) == len(pairs):
        return url
    return msgspec.structs.replace(url, target=path + (mark + "&".join(kept) if kept else ""))


def _add_to_body(fields: Sequence[InjectedField], media_type: str, body: bytes) -> tuple[bytes, list[str]]:
    if len(body) > MAX_MERGED_BODY_BYTES:
        message = f"A credential can be added to a body of at most {MAX_MERGED_BODY_BYTES} bytes."
        raise FetchError("too_large", message)
    if media_type == _FORM_TYPE:
        missing = [field for field in fields if not _has_pair(body.decode("latin-1"), field.name)]
        pairs = [body] if body else []
        pairs += [_encode_pair(field).encode() for field in missing]
        return b"&".join(pairs), [field.credential for field in missing]
    if media_type == "application/json" or media_type.endswith("+json"):
        try:
            members = _object_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _no_place(fields) from None
        missing = [field for field in fields if field.name not in members]
        members |= {field.name: msgspec.Raw(msgspec.json.encode(field.value)) for field in missing}
        return msgspec.json.encode(members), [field.credential for field in missing]
    raise _no_place(fields)


def _no_place(fields: Sequence[InjectedField]) -> FetchError:
    names = ", ".join(field.name for field in fields)
    expected = f"a JSON object (content-type: application/json) or a form ({_FORM_TYPE})"
    return FetchError(
        "bad_request", f"The credential {names} can be added only to a body that is {expected}."
    )


def _media_type(headers: Headers) -> str:
    value = next((value for name, value in headers if name.lower() == "content-type"), "")
    return value.partition(";")[0].strip().lower()


def _has_pair(text: str, name: str) -> bool:
    """Returns True if a query or form has a field with this name. Does not parse the text, because parsing
    many fields takes long.
    """
    names = "|".join(map(re.escape, (name, quote(name, safe=""), quote_plus(name))))
    return re.search(rf"(?:\A|&)(?:{names})(?:=|&|\Z)", text) is not None


def _encode_pair(field: InjectedField) -> str:
    return f"{quote(field.name, safe='')}={quote(field.value, safe='')}"


def _pair_forms(field: InjectedField) -> set[str]:
    """Returns the encodings in which a server may repeat a field in the URL of a redirect."""
    encoded = quote(field.value, safe="")
    lower = re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
    values = (encoded, lower, quote_plus(field.value), field.value, quote(field.value, safe="!$'()*,;:@/?"))
    names = (field.name, quote(field.name, safe=""))
    return {f"{name}={value}" for name in names for value in values}
