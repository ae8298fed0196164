"""Makes abilities from the operations of an OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urljoin

import msgspec

from hutch.cli.ability_import.models import (
    MAX_ABILITIES,
    ImportedAbility,
    ImportResult,
    NeededCredential,
    credential_kinds,
    http_address,
    make_id,
)
from hutch.cli.ability_import.openapi_document import (
    OpenApiDocument,
    SchemaConverter,
    UnsupportedOperation,
)
from hutch.cli.ability_import.recorded import FORM, SECRET_NAME, parse_url
from hutch.cli.ability_import.wrapper_code import Argument, QueryStyle, RequestTemplate
from hutch.errors import InvalidAbility, InvalidInput
from hutch.protocols.abilities.definition import parse_definition
from hutch.protocols.abilities.params import schema_error
from hutch.text import cut, did_you_mean

MAX_OPERATIONS = 20_000
"""Maximum number of operations to search for the requested ones."""
_OPTION = "--openapi"
_METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
_MAX_PARAMETERS = 100
_MAX_SCHEMA_CHARS = 100_000
_MAX_URL_CHARS = 2_000
_MAX_DESCRIPTION_CHARS = 2_000
_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,60}/[A-Za-z0-9.+-]{1,60}\Z")
# Characters that are not percent-encoded in a path. All others are encoded, because they would end the path
# or are not allowed in URLs.
_PATH_CHARS = "/%:@!$&'()*+,;=~"
# OpenAPI says to ignore header parameters with these names.
_IGNORED_HEADERS = frozenset(("accept", "content-type", "authorization"))
_SEPARATORS: dict[str, QueryStyle] = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}
_BASIC_HINT = "the word Basic, a space, and USER:PASSWORD in base64"


class _Operation(msgspec.Struct, frozen=True):
    method: str
    path: str
    item: dict[str, Any]
    """Path item of the document. It has the parameters and servers that all its operations share."""
    operation: dict[str, Any]

    @property
    def label(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def id(self) -> str:
        return _text(self.operation, "operationId")

    def is_named(self, name: str) -> bool:
        return name in (self.id, self.label)


def import_openapi(
    document: OpenApiDocument, operations: Sequence[str] = (), server: str | None = None
) -> ImportResult:
    """Converts operations, by default all of them. `operations` are operation ids, or `GET /path`. `server`
    is used instead of the servers in the document. Raises InvalidInput.
    """
    found = list(_operations(document))
    if not found:
        raise InvalidInput(_OPTION, "the document has no operations.")
    chosen = _choose(found, operations) if operations else found
    if len(chosen) > MAX_ABILITIES:
        some = ", ".join(each.id or each.label for each in chosen[:5])
        raise InvalidInput(
            _OPTION,
            f"the document has {len(chosen)} operations; the maximum is {MAX_ABILITIES}.",
            remedy=f"Choose some with --operations, such as {cut(some, 200)}.",
        )
    abilities: list[ImportedAbility] = []
    notes: list[str] = []
    for operation in chosen:
        taken = [ability.ability_id for ability in abilities]
        try:
            importer = _OperationImporter(document, operation, server)
            abilities.append(importer.ability(taken))
            notes += [f"{cut(operation.label, 100)}: {note}" for note in importer.notes]
        except UnsupportedOperation as error:
            notes.append(f"left out {cut(operation.label, 100)}: {error}")
        except InvalidAbility as error:
            notes.append(f"left out {cut(operation.label, 100)}: {cut(error.problems[0], 200)}")
    return ImportResult(abilities, notes)


def _operations(document: OpenApiDocument) -> Iterator[_Operation]:
    paths = document.root.get("paths")
    count = 0
    for path, item in (paths if isinstance(paths, dict) else {}).items():
        try:
            item = document.resolve(item)
        except UnsupportedOperation:
            continue
        for method in _METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                count += 1
                if count > MAX_OPERATIONS:
                    return
                yield _Operation(method, path, item, operation)


def _choose(found: Sequence[_Operation], names: Sequence[str]) -> list[_Operation]:
    chosen: dict[str, _Operation] = {}
    for name in names:
        matching = [each for each in found if each.is_named(name)]
        if not matching:
            near = did_you_mean(name, [each.id for each in found if each.id])
            hint = f"Did you mean {near}?" if near else "Write its operationId, or its method and path."
            raise InvalidInput(
                "--operations", f"the document has no operation {cut(name, 80)!r}.", remedy=hint
            )
        chosen |= {each.label: each for each in matching}
    return list(chosen.values())


class _OperationImporter:
    """Converts one operation."""

    def __init__(self, document: OpenApiDocument, operation: _Operation, server: str | None) -> None:
        """Raises UnsupportedOperation or InvalidInput."""
        self._document = document
        self._operation = operation
        self._schemas = SchemaConverter(document)
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self.notes: list[str] = []
        """Notes for callers about an operation that was imported."""
        self._base = self._server_url(server).rstrip("/")
        self._host = parse_url("server", self._base).hostname or ""
        self._credentials: dict[str, NeededCredential] = {}

    def ability(self, taken: Sequence[str]) -> ImportedAbility:
        """Raises UnsupportedOperation, or InvalidAbility if no valid definition can be made."""
        operation = self._operation.operation
        self._add_security()
        path: list[str | Argument] = [self._base]
        query: list[Argument] = []
        headers: list[Argument] = []
        by_name: dict[str, Argument] = {}
        for parameter in self._parameters():
            argument = self._argument(parameter)
            match parameter["in"]:
                case "path":
                    by_name[parameter["name"]] = argument
                case "query":
                    query.append(argument)
                case "header":
                    headers.append(argument)
        path += self._path(by_name)
        body, body_type = self._body()
        template = RequestTemplate(
            method=self._operation.method.upper(),
            path=path,
            query=query,
            headers=headers,
            body=body,
            body_type=body_type,
        )
        fallback_id = f"{self._operation.method} {self._operation.path}"
        definition = {
            "ability_id": make_id([self._operation.id, fallback_id], taken),
            "ability_name": cut(_one_line(_text(operation, "summary") or self._operation.label), 200),
            "service_name": self._host,
            "description": cut(
                _text(operation, "description") or _text(operation, "summary") or self._operation.label,
                _MAX_DESCRIPTION_CHARS,
            ),
            "static_headers": self._accept(),
            "dynamic_header_keys": list(self._credentials),
            **credential_kinds(self._credentials.values()),
            "input_schema": self._input_schema(),
            "wrapper_code": template.code(),
        }
        parse_definition(definition)
        address = http_address(parse_url("server", self._base))
        return ImportedAbility(definition, list(self._credentials.values()), address)

    # --- server and path ---

    def _server_url(self, given: str | None) -> str:
        url = self._declared_server() if given is None else given
        try:
            parts = parse_url("server", url)
        except InvalidInput as error:
            if given is not None:
                raise
            raise UnsupportedOperation(str(error)) from None
        return f"{parts.scheme}://{parts.netloc}{quote(parts.path, safe=_PATH_CHARS, errors='replace')}"

    def _declared_server(self) -> str:
        places = (self._operation.operation, self._operation.item, self._document.root)
        servers = next((each["servers"] for each in places if each.get("servers")), None)
        server = servers[0] if isinstance(servers, list) and isinstance(servers[0], dict) else {"url": "/"}
        url = _text(server, "url")[:_MAX_URL_CHARS]
        variables = server.get("variables")
        for name, variable in (variables if isinstance(variables, dict) else {}).items():
            if isinstance(variable, dict):
                default = variable.get("default")
                text = str(default) if isinstance(default, str | int | float) else ""
                url = url.replace(f"{{{name}}}", text[:_MAX_URL_CHARS])
            if len(url) > _MAX_URL_CHARS:
                raise UnsupportedOperation("the URL of its server is too long")
        if "://" not in url:
            if self._document.url is None:
                raise InvalidInput(
                    _OPTION,
                    "the document does not say on which host the API is.",
                    remedy="Add --server https://HOST.",
                )
            url = urljoin(self._document.url, url)
        return url

    def _path(self, by_name: dict[str, Argument]) -> Iterator[str | Argument]:
        """Yields the parts of the path. A path parameter that the document does not declare becomes a
        required string.
        """
        path = self._operation.path
        if not path.startswith("/"):
            raise UnsupportedOperation("expected a path that starts with a slash")
        for number, text in enumerate(_TEMPLATE.split(path)):
            if number % 2 == 0:
                if text:
                    yield quote(text, safe=_PATH_CHARS, errors="replace")
                continue
            if text not in by_name:
                by_name[text] = self._argument({"name": text, "in": "path", "required": True})
            yield by_name[text]

    # --- parameters ---

    def _parameters(self) -> Iterator[dict[str, Any]]:
        """Yields the parameters that callers set. Parameters for secrets become credentials instead."""
        declared: dict[tuple[str, str], dict[str, Any]] = {}
        for place in (self._operation.item, self._operation.operation):
            parameters = place.get("parameters")
            for node in parameters if isinstance(parameters, list) else ():
                parameter = self._document.resolve(node)
                name, where = _text(parameter, "name"), _text(parameter, "in")
                if name and where in ("path", "query", "header", "cookie"):
                    declared[where, name] = parameter
        if len(declared) > _MAX_PARAMETERS:
            raise UnsupportedOperation(f"it has more than {_MAX_PARAMETERS} parameters")
        credentials = {key.rpartition("::")[2].lower() for key in self._credentials}
        for (where, name), parameter in declared.items():
            if where != "path" and name.lower() in credentials:
                continue
            if where == "cookie":
                if parameter.get("required") is True:
                    self._need(name, "cookie")
            elif where == "header" and (name.lower() in _IGNORED_HEADERS or SECRET_NAME.search(name)):
                if name.lower() not in ("accept", "content-type"):
                    self._need(name, "header")
            elif where == "header" and not _HEADER_NAME.match(name):
                raise UnsupportedOperation("it has a header whose name is not valid")
            else:
                yield parameter

    def _argument(self, parameter: dict[str, Any]) -> Argument:
        """Adds a parameter to the input schema."""
        name, where = parameter["name"], parameter["in"]
        payload_name = name
        if name in self._properties or name == "body":
            payload_name = f"{where}_{name}"
        schema, style = parameter.get("schema"), _query_style(parameter)
        if isinstance(content := parameter.get("content"), dict) and content:
            media_type = self._document.resolve(next(iter(content.values())))
            schema, style = media_type.get("schema") if isinstance(media_type, dict) else None, "json"
        converted = self._schemas.convert(schema if isinstance(schema, dict) else {"type": "string"})
        if isinstance(converted, dict) and isinstance(parameter.get("description"), str):
            converted = {"description": cut(parameter["description"], 500), **converted}
        self._properties[payload_name] = converted
        if where == "path" or parameter.get("required") is True:
            self._required.append(payload_name)
        return Argument(name, payload_name, style)

    def _body(self) -> tuple[Argument | None, str]:
        """Returns the parameter `body` and the media type. Raises UnsupportedOperation for other types than
        JSON and forms.
        """
        body = self._document.resolve(self._operation.operation.get("requestBody"))
        content = body.get("content") if isinstance(body, dict) else None
        if not isinstance(content, dict) or not content:
            return None, ""
        is_required = body.get("required") is True
        types = sorted(
            (each for each in content if _is_json(each) or each == FORM), key=lambda each: each == FORM
        )
        if not types:
            listed = cut(", ".join(content), 80)
            if is_required:
                raise UnsupportedOperation(f"its body is {listed}; expected JSON or a form")
            self.notes.append(f"its body is {listed} and was left out")
            return None, ""
        media_type = self._document.resolve(content[types[0]])
        schema = media_type.get("schema") if isinstance(media_type, dict) else None
        self._properties["body"] = self._schemas.convert(schema if isinstance(schema, dict) else {})
        if is_required:
            self._required.append("body")
        return Argument("body", "body"), types[0]

    def _input_schema(self) -> dict[str, Any]:
        """Returns the schema of the parameters. If it would be too large or is not valid, returns a schema
        with only their names.
        """
        schema: dict[str, Any] = {"type": "object", "properties": self._properties}
        if self._required:
            schema["required"] = self._required
        if definitions := self._schemas.definitions():
            schema["$defs"] = definitions
        try:
            is_large = len(msgspec.json.encode(schema)) > _MAX_SCHEMA_CHARS
            problem = "it is too large" if is_large else schema_error(schema)
        except OverflowError:
            problem = "it has numbers of more than 64 bits"
        if problem is None:
            return schema
        self.notes.append(f"its parameters are not checked against its schema: {cut(problem, 200)}")
        del schema["properties"]
        schema.pop("$defs", None)
        return {**schema, "properties": {name: {} for name in self._properties}}

    def _accept(self) -> dict[str, str]:
        """Returns the Accept header with the JSON media type of the operation's response, or nothing if it
        has none.
        """
        responses = self._operation.operation.get("responses")
        for status, node in (responses if isinstance(responses, dict) else {}).items():
            if status.startswith("2") or status == "default":
                response = self._document.resolve(node)
                content = response.get("content") if isinstance(response, dict) else None
                if media_type := next(filter(_is_json, content if isinstance(content, dict) else ()), None):
                    return {"Accept": media_type}
        return {}

    # --- credentials ---

    def _need(self, name: str, kind: str, hint: str = "") -> None:
        if not _HEADER_NAME.match(name):
            raise UnsupportedOperation("it needs a credential whose name is not valid")
        key = f"{self._host}::{name}"
        self._credentials.setdefault(key, NeededCredential(key, kind, hint))

    def _add_security(self) -> None:
        """Adds the credentials of the first security requirement that abilities can meet."""
        root = self._document.root
        requirements = self._operation.operation.get("security", root.get("security"))
        if not isinstance(requirements, list) or not requirements:
            return
        problem = ""
        for requirement in requirements:
            try:
                schemes = [
                    self._scheme(name) for name in (requirement if isinstance(requirement, dict) else {})
                ]
            except UnsupportedOperation as error:
                problem = problem or str(error)
                continue
            for name, kind, hint in schemes:
                self._need(name, kind, hint)
            return
        raise UnsupportedOperation(problem)

    def _scheme(self, name: str) -> tuple[str, str, str]:
        """Returns the name, the kind and a hint for the credential of a security scheme."""
        components = self._document.root.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, dict) else None
        scheme = self._document.resolve(schemes.get(name) if isinstance(schemes, dict) else None)
        match scheme:
            case {"type": "apiKey", "in": "header" | "query" | "cookie" as place, "name": str(key)}:
                return key, place, ""
            case {"type": "http", "scheme": str(kind)} if kind.lower() == "basic":
                return "Authorization", "header", _BASIC_HINT
            case {"type": "http", "scheme": str(kind)} if kind.lower() == "bearer":
                return "Authorization", "auth_token", "the token"
            case {"type": "oauth2"}:
                return "Authorization", "auth_token", "an OAuth 2 access token"
            case {"type": "openIdConnect"}:
                return "Authorization", "auth_token", "an OpenID Connect access token"
        raise UnsupportedOperation(f"its security scheme {cut(name, 60)!r} is not supported")


def _query_style(parameter: dict[str, Any]) -> QueryStyle:
    style = parameter.get("style", "form")
    if style == "deepObject":
        return "deep"
    explode = parameter.get("explode", style == "form")
    return "repeat" if explode else _SEPARATORS.get(str(style), ",")


def _is_json(media_type: str) -> bool:
    lower = media_type.lower()
    return bool(_MEDIA_TYPE.match(media_type)) and (lower == "application/json" or lower.endswith("+json"))


def _text(node: Any, name: str) -> str:
    value = node.get(name) if isinstance(node, dict) else None
    return value if isinstance(value, str) else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
