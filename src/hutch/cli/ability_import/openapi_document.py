"""Loads OpenAPI documents, resolves their references, and converts their schemas to JSON Schema."""

from __future__ import annotations

import re
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from hutch.cli.ability_import.models import decode_json, without_surrogates
from hutch.errors import InvalidInput
from hutch.text import cut

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
MAX_YAML_BYTES = 4 * 1024 * 1024
"""Maximum size of a YAML document. Decoding YAML takes about a hundred times as long as decoding JSON."""
MAX_DOWNLOAD_SECONDS = 60.0
_OPTION = "--openapi"
_MAX_REFERENCES = 20
_MAX_REFERENCE_CHARS = 2_000
_MAX_SCHEMAS = 2_000
_MAX_DEFINITIONS = 100
_MAX_NESTING = 30
_MAX_DESCRIPTION_CHARS = 500


class UnsupportedOperation(Exception):
    """An operation cannot be imported. The message gives the reason."""


class OpenApiDocument:
    """A decoded document and the URL that it came from."""

    def __init__(self, root: Any, url: str | None = None) -> None:
        """Raises InvalidInput if the document is not OpenAPI 3."""
        version = root.get("openapi") if isinstance(root, dict) else None
        if not isinstance(version, str) or not version.startswith("3."):
            is_swagger = isinstance(root, dict) and "swagger" in root
            got = "Swagger 2.0" if is_swagger else cut(repr(version), 40) if version else "no field `openapi`"
            raise InvalidInput(
                _OPTION, f"expected OpenAPI 3.0 or 3.1, got {got}. Convert the document first."
            )
        self.root: dict[str, Any] = root
        self.url = url

    def resolve(self, node: Any) -> Any:
        """Follows `$ref`. Raises UnsupportedOperation if the target is missing or in another document, or if
        references are circular.
        """
        for _ in range(_MAX_REFERENCES):
            reference = node.get("$ref") if isinstance(node, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.find(reference)
        raise UnsupportedOperation("it has a circular reference")

    def find(self, reference: str) -> Any:
        """Returns the target of a reference. Raises UnsupportedOperation."""
        if not reference.startswith("#/"):
            raise UnsupportedOperation(f"it refers to another document, {cut(reference, 80)!r}")
        if len(reference) > _MAX_REFERENCE_CHARS:
            raise UnsupportedOperation("it has a reference that is too long")
        node: Any = self.root
        for step in reference[2:].split("/"):
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and len(key) < 6 and int(key) < len(node):
                node = node[int(key)]
            else:
                raise UnsupportedOperation(f"{cut(reference, 80)!r} does not exist")
        return node


def load_document(source: str) -> OpenApiDocument:
    """Loads a document from a file or a URL. Raises InvalidInput."""
    is_url = source.lower().startswith(("http://", "https://"))
    raw = _download(source) if is_url else _read(Path(source))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(_OPTION, "expected a document in UTF-8.") from None
    if text.lstrip().startswith("{"):
        root = decode_json(_OPTION, text)
    else:
        root = _decode_yaml(text)
    return OpenApiDocument(root, source if is_url else None)


def _decode_yaml(text: str) -> Any:
    from hutch.protocols.rep.ir.source.yaml import InvalidYaml, decode_yaml

    if len(text) > MAX_YAML_BYTES:
        size = MAX_YAML_BYTES // 1024**2
        raise InvalidInput(_OPTION, f"expected YAML of at most {size} MiB. Convert the document to JSON.")
    try:
        return without_surrogates(decode_yaml(text), text)
    except InvalidYaml as error:
        raise InvalidInput(_OPTION, f"expected JSON or YAML: {error}.") from None


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(_OPTION, f"{file}: cannot be read: {reason}.") from None
    return _bounded(raw)


def _download(url: str) -> bytes:
    if urlsplit(url).username is not None:
        raise InvalidInput(_OPTION, "the URL contains a user name. Download the document and name its file.")
    outcomes: SimpleQueue[bytes | Exception] = SimpleQueue()
    # Download in a thread with a timeout for the whole download. The timeout of a socket is not enough,
    # because it starts again with every byte that a slow server sends.
    Thread(target=lambda: outcomes.put(_fetch(url)), daemon=True).start()
    try:
        outcome = outcomes.get(timeout=MAX_DOWNLOAD_SECONDS)
    except Empty:
        outcome = TimeoutError(f"it took longer than {MAX_DOWNLOAD_SECONDS:g} s")
    if isinstance(outcome, InvalidInput):
        raise outcome
    if isinstance(outcome, Exception):
        raise InvalidInput(_OPTION, f"{url}: cannot be downloaded: {outcome}.")
    return _bounded(outcome)


def _fetch(url: str) -> bytes | Exception:
    """Downloads a document. If that fails, returns the error. Reads at most one byte more than the maximum
    size, so that the caller can detect a document that is too large.
    """
    from http.client import HTTPException, HTTPMessage
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class OwnRedirects(HTTPRedirectHandler):
        """Refuses redirects to other servers, because the redirecting server could lead the user to a server
        that only the user can reach.
        """

        def redirect_request(
            self, req: Request, fp: Any, code: int, msg: str, headers: HTTPMessage, newurl: str
        ) -> Request | None:
            old, new = urlsplit(req.full_url), urlsplit(newurl)
            if old.hostname != new.hostname or new.scheme not in (old.scheme, "https"):
                fp.close()
                remedy = f"Use {cut(newurl, 200)} if you trust that server."
                raise InvalidInput(_OPTION, f"{cut(url, 200)} leads to another server.", remedy=remedy)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    try:
        with build_opener(OwnRedirects).open(url, timeout=MAX_DOWNLOAD_SECONDS) as response:
            document: bytes = response.read(MAX_DOCUMENT_BYTES + 1)
            return document
    except HTTPError as error:
        error.close()
        return error
    except (OSError, HTTPException, ValueError, InvalidInput) as error:
        return error


def _bounded(raw: bytes) -> bytes:
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise InvalidInput(_OPTION, f"expected a document of at most {MAX_DOCUMENT_BYTES // 1024**2} MiB.")
    return raw


# --- schemas ---

# Keywords that are copied if their value has this type.
_COPIED: dict[str, type | tuple[type, ...]] = {
    "type": (str, list),
    "enum": list,
    "format": str,
    "pattern": str,
    "minimum": (int, float),
    "maximum": (int, float),
    "exclusiveMinimum": (int, float),
    "exclusiveMaximum": (int, float),
    "multipleOf": (int, float),
    "minLength": int,
    "maxLength": int,
    "minItems": int,
    "maxItems": int,
    "uniqueItems": bool,
    "minProperties": int,
    "maxProperties": int,
}
_SUBSCHEMAS = ("items", "additionalProperties", "not")
_SUBSCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")


class SchemaConverter:
    """Converts the schemas of one operation. A schema to which another one refers is not inlined but becomes
    an entry of `$defs`, so that circular references are possible.
    """

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._pending: list[str] = []
        self._count = 0

    def convert(self, schema: Any, depth: int = 0) -> Any:
        """Returns the JSON Schema. Where the schema is too large or too deep, every value is allowed."""
        self._count += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or self._count > _MAX_SCHEMAS or depth > _MAX_NESTING:
            return {}
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference)
        converted = {
            name: schema[name] for name, kind in _COPIED.items() if isinstance(schema.get(name), kind)
        }
        if isinstance(schema.get("description"), str):
            converted["description"] = cut(schema["description"], _MAX_DESCRIPTION_CHARS)
        for name in ("default", "const"):
            if name in schema:
                converted[name] = schema[name]
        for name in _SUBSCHEMAS:
            if isinstance(schema.get(name), dict | bool):
                converted[name] = self.convert(schema[name], depth + 1)
        for name in _SUBSCHEMA_LISTS:
            if isinstance(schema.get(name), list) and schema[name]:
                converted[name] = [self.convert(item, depth + 1) for item in schema[name]]
        self._convert_properties(schema, converted, depth)
        return _with_openapi_3_0_keywords(schema, converted)

    def _convert_properties(self, schema: dict[str, Any], converted: dict[str, Any], depth: int) -> None:
        """Converts the properties. Leaves out read-only properties, which occur only in responses."""
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        read_only = {
            name
            for name, each in properties.items()
            if isinstance(each, dict) and each.get("readOnly") is True
        }
        if writable := {name: each for name, each in properties.items() if name not in read_only}:
            converted["properties"] = {name: self.convert(each, depth + 1) for name, each in writable.items()}
        required = schema.get("required")
        if isinstance(required, list) and (names := [each for each in required if isinstance(each, str)]):
            converted["required"] = sorted({*names} - read_only)

    def definitions(self) -> dict[str, Any]:
        """Returns `$defs`: the schemas to which the converted schemas refer, directly or indirectly."""
        definitions: dict[str, Any] = {}
        while self._pending:
            reference = self._pending.pop()
            try:
                target = self._document.find(reference)
            except UnsupportedOperation:
                target = {}
            definitions[self._names[reference]] = self.convert(target)
        return definitions

    def _reference(self, reference: str) -> Any:
        if reference not in self._names:
            if len(self._names) == _MAX_DEFINITIONS:
                return {}
            name = re.sub(r"[^A-Za-z0-9]+", "_", reference.rpartition("/")[2])[:60] or "schema"
            taken = set(self._names.values())
            self._names[reference] = name if name not in taken else f"{name}_{len(taken)}"
            self._pending.append(reference)
        return {"$ref": f"#/$defs/{self._names[reference]}"}


def _with_openapi_3_0_keywords(schema: dict[str, Any], converted: dict[str, Any]) -> dict[str, Any]:
    """Converts keywords that only OpenAPI 3.0 has: `nullable`, and exclusive limits that are flags."""
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(converted.get(exclusive), bool):
            is_exclusive = converted.pop(exclusive)
            if is_exclusive and limit in converted:
                converted[exclusive] = converted.pop(limit)
    if schema.get("nullable") is True:
        if isinstance(converted.get("type"), str):
            converted["type"] = [converted["type"], "null"]
        if isinstance(converted.get("enum"), list) and None not in converted["enum"]:
            converted["enum"] = [*converted["enum"], None]
    return converted
