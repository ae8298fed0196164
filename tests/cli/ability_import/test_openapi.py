"""Conversion of OpenAPI documents to abilities. The tests run these abilities against an API."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.cli.ability_import.conftest import EchoApi, add_imported
from tests.support.processes import hutch

from hutch.cli.ability_import.models import ImportResult
from hutch.cli.ability_import.openapi import import_openapi
from hutch.cli.ability_import.openapi_document import OpenApiDocument, load_document
from hutch.errors import InvalidInput

SHOP = Path(__file__).with_name("shop.yaml")
SECRETS = {
    ("auth_token", "127.0.0.1::Authorization"): "token-of-the-shop",
    ("header", "127.0.0.1::X-Api-Key"): "key-of-the-shop",
    ("query", "127.0.0.1::key"): "query-key-of-the-shop",
    ("cookie", "127.0.0.1::sid"): "session-of-the-shop",
}


def import_one(operation: dict[str, Any], path: str = "/x", **root: Any) -> ImportResult:
    servers = [{"url": "https://api.example.com/v2/"}]
    paths = {path: {"get": {"operationId": "op", "responses": {}, **operation}}}
    return import_openapi(OpenApiDocument({"openapi": "3.1.0", "servers": servers, "paths": paths, **root}))


def definition(operation: dict[str, Any], path: str = "/x", **root: Any) -> dict[str, Any]:
    result = import_one(operation, path, **root)
    assert len(result.abilities) == 1, result.notes
    return result.abilities[0].definition


@pytest.fixture(scope="module")
def shop(echo_api: EchoApi, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Imports the abilities of the shop from a document that the API serves. Returns the notes of
    the import.
    """
    text = SHOP.read_text().replace("{scheme}://api.shop.example", echo_api.url)
    echo_api.documents["/openapi.yaml"] = text.encode()
    folder = tmp_path_factory.mktemp("shop")
    notes = add_imported("--openapi", f"{echo_api.url}/openapi.yaml", folder=folder)
    for (kind, key), value in SECRETS.items():
        done = hutch("credential", "set", "--user", "bo", "--kind", kind, key, input=value)
        assert done.returncode == 0, done.stderr
    return notes


def test_import_names_credentials_what_is_left_out_and_the_next_command(
    shop: list[str], echo_api: EchoApi
) -> None:
    text = "\n".join(shop)
    assert "made 5 abilities: listOrders, orders_create, getOrder, deleteOrder, login" in text
    assert "left out POST /orders/{order_id}/attachments: its body is multipart/form-data" in text
    for kind, key in SECRETS:
        assert f"`hutch credential set --user NAME --kind {kind} {key}`" in text
    assert "USER:PASSWORD in base64" in text
    assert "`hutch ability add --user NAME abilities.json`" in text
    assert shop[-1].endswith(f"run --user NAME listOrders --egress-allow {echo_api.address}`")


@pytest.mark.usefixtures("shop")
def test_parameters_reach_the_api_as_the_document_says(echo_api: EchoApi) -> None:
    listed = echo_api.run(
        "listOrders", limit=5, status=["open", "paid"], tag=["a b", "c"], filter={"from": "x&y"}
    )
    assert (
        listed["request"] == "GET /v1/orders?limit=5&status=open%2Cpaid&tag=a+b&tag=c&filter%5Bfrom%5D=x%26y"
    )
    assert listed["headers"]["accept"] == "application/vnd.shop+json"
    assert listed["headers"]["authorization"] == "Bearer [redacted]"

    created = echo_api.run("orders_create", body={"article": "tea", "part_of": {"article": "set"}})
    assert created["headers"]["content-type"] == "application/json"
    assert created["headers"]["x-api-key"] == "[redacted]"
    assert json.loads(created["body"]) == {"article": "tea", "part_of": {"article": "set"}}

    deleted = echo_api.run("deleteOrder", order_id="a/b?c", **{"X-Request-ID": "7"})
    assert deleted["request"] == "DELETE /v1/orders/a%2Fb%3Fc?key=[redacted]"
    assert (deleted["headers"]["cookie"], deleted["headers"]["x-request-id"]) == ("sid=[redacted]", "7")

    form = echo_api.run("login", body={"user": "bo & co", "tags": ["a", "b"]})
    assert form["body"] == "user=bo+%26+co&tags=a&tags=b"
    assert "authorization" not in form["headers"]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("ability_id", "params", "message"),
    [
        ("deleteOrder", {"order_id": ".."}, "expected a value for the path"),
        ("deleteOrder", {}, "params.order_id: is required"),
        (
            "orders_create",
            {"body": {"part_of": {"article": ""}, "article": "x"}},
            "params.body.part_of.article",
        ),
    ],
)
def test_wrong_parameters_reach_no_api(
    echo_api: EchoApi, ability_id: str, params: dict[str, Any], message: str
) -> None:
    before = len(echo_api.seen)
    run = ("ability", "run", "--user", "bo", ability_id, "--egress-allow", echo_api.address)
    done = hutch(*run, "--params", json.dumps(params))
    assert done.returncode == 1
    assert message in done.stderr
    assert len(echo_api.seen) == before


def test_schema_keeps_circular_references_and_drops_read_only_properties() -> None:
    shop = import_openapi(load_document(str(SHOP)), ["orders/create", "GET /orders"])
    create, listed = (ability.definition for ability in shop.abilities)
    order = create["input_schema"]["$defs"]["Order"]
    assert order["properties"]["part_of"] == {"$ref": "#/$defs/Order"}
    assert (order["required"], "id" in order["properties"]) == (["article"], False)
    assert order["properties"]["note"]["type"] == ["string", "null"]
    assert listed["input_schema"]["properties"]["limit"]["exclusiveMinimum"] == 0
    assert create["service_name"] == "api.shop.example"


def test_json_document_and_type_3_1_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    document = {
        "openapi": "3.1.0",
        "paths": {
            "/a": {
                "get": {
                    "parameters": [
                        {"name": "a", "in": "query", "schema": {"type": ["string", "null"]}},
                        {"name": "a", "in": "header", "schema": {"type": "string"}},
                    ]
                }
            }
        },
    }
    file.write_text(json.dumps(document))
    result = import_openapi(load_document(str(file)), server="https://api.example.com")
    fields = result.abilities[0].definition
    assert fields["ability_id"] == "get_a"
    assert [*fields["input_schema"]["properties"]] == ["a", "header_a"]
    with pytest.raises(InvalidInput, match="Add --server"):
        import_openapi(load_document(str(file)))


def test_relative_server_is_resolved_against_the_address_of_the_document() -> None:
    root = {"openapi": "3.0.0", "servers": [{"url": "../v3/"}], "paths": {"/a": {"get": {}}}}
    result = import_openapi(OpenApiDocument(root, "https://api.example.com/docs/openapi.json"))
    assert 'new URL("https://api.example.com/v3" + "/a")' in result.abilities[0].definition["wrapper_code"]


def test_document_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    for source in ("http://127.0.0.1:1/openapi.json", str(tmp_path / "missing.json"), str(tmp_path)):
        with pytest.raises(InvalidInput, match="cannot be") as caught:
            load_document(source)
        assert source in str(caught.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"swagger": "2.0"}, "got Swagger 2.0"),
        ({"openapi": "4.0"}, "got '4.0'"),
        ([], "got no field `openapi`"),
        ({"openapi": "3.0.0"}, "no operations"),
    ],
)
def test_other_documents_are_refused(document: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        import_openapi(OpenApiDocument(document))


def test_unknown_operation_gets_a_suggestion() -> None:
    with pytest.raises(InvalidInput, match="Did you mean listOrders") as caught:
        import_openapi(load_document(str(SHOP)), ["listOrder"])
    assert caught.value.remedy


def test_first_supported_security_requirement_is_used() -> None:
    schemes = {
        "tls": {"type": "mutualTLS"},
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    }
    components = {"securitySchemes": schemes}
    either = definition({"security": [{"tls": []}, {"key": []}]}, components=components)
    assert either["dynamic_header_keys"] == ["api.example.com::X-Key"]
    only = import_one({"security": [{"tls": []}]}, components=components)
    assert (only.abilities, only.notes) == (
        [],
        ["left out GET /x: its security scheme 'tls' is not supported"],
    )
    none = definition({"security": []}, components=components, security=[{"key": []}])
    assert none["dynamic_header_keys"] == []


def test_secret_header_parameter_becomes_a_credential() -> None:
    parameters = [{"name": name, "in": "header"} for name in ("Authorization", "X-Auth-Token", "X-Page")]
    fields = definition({"parameters": parameters})
    keys = ["api.example.com::Authorization", "api.example.com::X-Auth-Token"]
    assert fields["dynamic_header_keys"] == keys
    assert [*fields["input_schema"]["properties"]] == ["X-Page"]


# --- hostile documents ---

CODE = '"]); fetch("http://127.0.0.1/stolen"); //`${fetch(1)}` */ \n\u2028\r\'\\'


def test_texts_of_a_document_never_become_code(echo_api: EchoApi, tmp_path: Path) -> None:
    document = {
        "openapi": "3.0.0",
        "info": {"title": CODE},
        "servers": [{"url": f"{echo_api.url}/{CODE}"}],
        "paths": {
            f"/{CODE}/{{{CODE.replace('{', '').replace('}', '')}}}": {
                "post": {
                    "operationId": CODE,
                    "summary": CODE,
                    "description": CODE,
                    "parameters": [
                        {"name": CODE, "in": "query", "description": CODE, "schema": {"default": CODE}}
                    ],
                    "requestBody": {"content": {"application/json": {"schema": {"title": CODE}}}},
                    "responses": {"200": {"content": {f"application/{CODE}+json": {}}}},
                }
            }
        },
    }
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(document))
    imported = hutch("ability", "import", "--openapi", str(file))
    assert imported.returncode == 0, imported.stderr
    fields = json.loads(imported.stdout)
    assert fields["static_headers"] == {}
    assert hutch("ability", "add", "--user", "bo", "-", input=imported.stdout).returncode == 0
    before = len(echo_api.seen)
    params = dict.fromkeys((*fields["input_schema"]["required"], CODE), "x")
    echo = echo_api.run(fields["ability_id"], **params, body={"a": 1})
    assert len(echo_api.seen) == before + 1
    assert echo["request"].startswith("POST /%22%5D);%20fetch(%22http://127.0.0.1/stolen%22)")
    assert json.loads(echo["body"]) == {"a": 1}


@pytest.mark.parametrize("path", ["@evil.example/x", ".evil.example/x", "x"])
def test_path_cannot_change_the_host(path: str) -> None:
    result = import_one({}, path)
    assert result.abilities == []
    assert "expected a path that starts with a slash" in result.notes[0]


@pytest.mark.parametrize(
    "url", ["https://bo@evil.example", "file:///etc/passwd", "https://a\\b/", "https://["]
)
def test_server_must_be_a_plain_url(url: str) -> None:
    result = import_one({}, servers=[{"url": url}])
    assert (result.abilities, len(result.notes)) == ([], 1)


def test_printed_commands_are_quoted_for_a_shell(tmp_path: Path) -> None:
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "X-`id$IFS`"}}
    operation = {"get": {"parameters": [{"name": "$(id)", "in": "query", "required": True}]}}
    document = {
        "openapi": "3.0.0",
        "servers": [{"url": "https://api.example.com"}],
        "security": [{"key": []}],
        "paths": {"/x": operation},
        "components": {"securitySchemes": schemes},
    }
    file = tmp_path / "api.json"
    file.write_text(json.dumps(document))
    done = hutch("ability", "import", "--openapi", str(file))
    commands = [
        line for line in done.stderr.splitlines() if "hutch credential" in line or "ability run" in line
    ]
    assert len(commands) == 2
    for line in commands:
        command = line[line.index("`hutch") + 1 : line.rindex("`")]
        last = shlex.split(command)[-1]
        assert last in ("api.example.com::X-`id$IFS`", '{"$(id)": "…"}')
        assert f"'{last}'" in command


def test_circular_references_are_refused() -> None:
    loop = {
        "parameters": {"a": {"$ref": "#/components/parameters/b"}, "b": {"$ref": "#/components/parameters/a"}}
    }
    result = import_one({"parameters": [{"$ref": "#/components/parameters/a"}]}, components=loop)
    assert result.notes == ["left out GET /x: it has a circular reference"]


@pytest.mark.parametrize(
    "reference", ["file:///etc/passwd", "https://evil.example/x.json", "other.yaml#/a", "#/a/b"]
)
def test_references_stay_in_the_document(reference: str) -> None:
    result = import_one({"parameters": [{"$ref": reference}]})
    assert (result.abilities, len(result.notes)) == ([], 1)
    body = {"content": {"application/json": {"schema": {"$ref": reference}}}}
    assert definition({"requestBody": body})["input_schema"]["$defs"].popitem()[1] == {}


def test_schemas_that_multiply_stay_small() -> None:
    def double(name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {side: {"$ref": f"#/components/schemas/{name}"} for side in "ab"},
        }

    schemas = {f"s{number}": double(f"s{number + 1}") for number in range(500)}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s0"}}}}
    fields = definition({"requestBody": body}, components={"schemas": schemas})
    assert len(json.dumps(fields)) < 20_000
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    body = {"content": {"application/json": {"schema": deep}}}
    assert len(json.dumps(definition({"requestBody": body}))) < 5_000


def test_schema_that_cannot_be_checked_is_dropped() -> None:
    parameter = {"name": "a", "in": "query", "required": True, "schema": {"type": "string", "pattern": "("}}
    result = import_one({"parameters": [parameter]})
    schema = result.abilities[0].definition["input_schema"]
    assert schema == {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    assert "its parameters are not checked" in result.notes[0]


def test_large_documents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hutch.cli.ability_import import openapi_document

    file = tmp_path / "api.yaml"
    file.write_text("openapi: 3.0.0\n" + "# padding\n" * 100)
    monkeypatch.setattr(openapi_document, "MAX_YAML_BYTES", 100)
    with pytest.raises(InvalidInput, match="Convert the document to JSON"):
        load_document(str(file))
    monkeypatch.setattr(openapi_document, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(InvalidInput, match="at most"):
        load_document(str(file))


class HostileSite(BaseHTTPRequestHandler):
    """Site that sends faulty documents. The path of the request names the fault."""

    requests: ClassVar[list[str]] = []
    ended = threading.Event()

    def do_GET(self) -> None:
        self.requests.append(f"{self.headers['Host'].partition(':')[0]}{self.path}")
        port = self.server.server_address[1]
        match self.path:
            case "/other":
                self._send(302, f"Location: http://localhost:{port}/document")
            case "/file":
                self._send(302, "Location: file:///etc/hostname")
            case "/own":
                self._send(302, "Location: /document")
            case "/circle":
                self._send(302, "Location: /circle")
            case "/slow":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not self.ended.wait(0.01):
                    self.wfile.write(b"x")
            case "/huge":
                self._send(200, "Content-Type: text/plain", b" " * 1_000)
            case _:
                self._send(200, "Content-Type: text/plain", b'{"openapi": "3.0.0"}')

    def _send(self, status: int, header: str, body: bytes = b"") -> None:
        name, _, value = header.partition(": ")
        self.send_response(status)
        self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile_site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HostileSite)
    server.daemon_threads = True
    HostileSite.requests.clear()
    HostileSite.ended.clear()
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    HostileSite.ended.set()
    server.shutdown()
    serving.join()
    server.server_close()


def test_download_follows_redirects_within_its_server(hostile_site: str) -> None:
    assert load_document(f"{hostile_site}/own").root == {"openapi": "3.0.0"}


def test_server_of_a_document_cannot_choose_another_server(hostile_site: str) -> None:
    with pytest.raises(InvalidInput, match="leads to another server") as caught:
        load_document(f"{hostile_site}/other")
    assert "if you trust that server" in (caught.value.remedy or "")
    with pytest.raises(InvalidInput, match="is not allowed"):
        load_document(f"{hostile_site}/file")
    assert HostileSite.requests == ["127.0.0.1/other", "127.0.0.1/file"]


def test_download_that_does_not_end_is_refused(hostile_site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hutch.cli.ability_import import openapi_document

    with pytest.raises(InvalidInput, match="infinite loop"):
        load_document(f"{hostile_site}/circle")
    monkeypatch.setattr(openapi_document, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(InvalidInput, match="at most"):
        load_document(f"{hostile_site}/huge")
    # The site sends headers without end, and each byte arrives in time. Only the limit on the duration of the
    # whole download can end the download.
    monkeypatch.setattr(openapi_document, "MAX_DOWNLOAD_SECONDS", 0.3)
    with pytest.raises(InvalidInput, match=r"took longer than 0\.3 s"):
        load_document(f"{hostile_site}/slow")


def test_long_references_are_not_followed() -> None:
    """Each of the 20 000 path items has the same long reference. Following the reference once would take a
    tenth of a second.
    """
    far = {"$ref": "#/" + "a/" * 1_000_000}
    paths: dict[str, Any] = {f"/p{number}": {"$ref": "#/far"} for number in range(20_000)}
    document = OpenApiDocument({"openapi": "3.0.0", "far": far, "paths": paths})
    with pytest.raises(InvalidInput, match="no operations"):
        import_openapi(document)


def test_too_many_operations_ask_for_a_choice() -> None:
    paths = {f"/p{number}": {"get": {"operationId": f"op{number}"}} for number in range(501)}
    document = OpenApiDocument(
        {"openapi": "3.0.0", "servers": [{"url": "https://a.example"}], "paths": paths}
    )
    with pytest.raises(InvalidInput, match="--operations"):
        import_openapi(document)
    chosen = import_openapi(document, ["op3", "GET /p4"])
    assert [ability.ability_id for ability in chosen.abilities] == ["op3", "op4"]


def test_server_variables_that_multiply_are_refused() -> None:
    variables = {f"v{number}": {"default": f"{{v{number + 1}}}" * 300} for number in range(50)}
    result = import_one({}, servers=[{"url": "https://a.example/" + "{v0}" * 300, "variables": variables}])
    assert result.notes == ["left out GET /x: the URL of its server is too long"]


@pytest.mark.parametrize("text", ['"\\ud800"', "99999999999999999999999999"])
def test_values_that_cannot_be_encoded_do_no_harm(tmp_path: Path, text: str) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(
        "openapi: 3.0.0\nservers: [{url: 'https://a.example'}]\npaths: {/x: {get: {summary: "
        f"{text}, parameters: [{{name: a, in: query, schema: {{default: {text}}}}}]}}}}}}\n"
    )
    done = hutch("ability", "import", "--openapi", str(file))
    assert (done.returncode, json.loads(done.stdout)["ability_id"]) == (0, "get_x"), done.stderr
