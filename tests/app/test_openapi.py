"""The OpenAPI document names every route, is valid, and matches real responses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette
from starlette.routing import Route
from tests.support.openapi import OpenApiChecker
from tests.support.processes import NO_WARM_RUNNERS, ServeProcess, running_server

from hutch.app.app import App
from hutch.app.openapi import document
from hutch.http.auth import AccessControl
from hutch.http.endpoint import Endpoint
from hutch.http.middleware.run_headers import RunIdHeaders
from hutch.settings import Settings

KEY = "the-operators-key"
# Pages for browsers.
PAGES = {"/", "/assets/{name}", "/docs/api"}


async def test_every_route_of_the_server_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applications: list[Starlette] = []
    monkeypatch.setattr(
        "hutch.http.middleware.run_headers.RunIdHeaders",
        lambda web: applications.append(web) or RunIdHeaders(web),
    )
    settings = Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0)
    app = await App.create(settings)
    try:
        app.http_app(AccessControl(settings))
    finally:
        await app.close()
    (web,) = applications
    served = set()
    for route in web.routes:
        if not isinstance(route, Route) or route.path in PAGES:
            continue
        methods = route.app.methods if isinstance(route.app, Endpoint) else route.methods
        assert methods is not None
        served |= {(route.path.replace(":path", ""), method.lower()) for method in methods - {"HEAD"}}
    documented = {(path, method) for path, item in document(settings)["paths"].items() for method in item}
    assert documented == served


def test_document_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(document(Settings())).validate()


def test_operation_ids_are_unique_and_every_tag_is_described() -> None:
    made = document(Settings())
    operations = [operation for item in made["paths"].values() for operation in item.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    tags = {tag["name"] for tag in made["tags"] if tag["description"]}
    assert {tag for operation in operations for tag in operation["tags"]} == tags


def test_every_schema_is_used() -> None:
    made = document(Settings())

    def names(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "/schemas/" in value.get("$ref", ""):
                yield value["$ref"].rpartition("/")[2]
            for each in value.values():
                yield from names(each)
        elif isinstance(value, list):
            for each in value:
                yield from names(each)

    assert set(names(made)) == set(made["components"]["schemas"])


def test_every_request_body_has_an_example_that_matches() -> None:
    api = OpenApiChecker(document(Settings()))
    for path, item in api.document["paths"].items():
        for method, operation in item.items():
            if "requestBody" in operation:
                example = operation["requestBody"]["content"]["application/json"]["example"]
                api.check_body(method, path, example)


# --- responses ---


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def server(home: str) -> Iterator[ServeProcess]:
    with running_server(
        HUTCH_HOME=home, HUTCH_API_KEY=KEY, HUTCH_OFFLINE="true", **NO_WARM_RUNNERS
    ) as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: ServeProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client


@pytest.fixture(scope="module")
def api(operator: httpx2.Client) -> OpenApiChecker:
    """A checker that uses the document which the server sends to clients without a key."""
    response = httpx2.get(f"{operator.base_url}/openapi.json")
    assert response.headers["content-type"] == "application/json"
    return OpenApiChecker(response.json())


def test_served_document_has_the_limits_of_the_server(api: OpenApiChecker) -> None:
    assert api.document == document(Settings(api_key=KEY))
    assert api.operation("POST", "/run")["security"] == [{"key": []}]


@pytest.mark.parametrize(
    ("method", "template", "path", "body", "status"),
    [
        ("GET", "/health", None, None, 200),
        ("GET", "/ready", None, None, 200),
        ("GET", "/metrics", None, None, 200),
        ("GET", "/openapi.json", None, None, 200),
        ("GET", "/info", None, None, 200),
        ("GET", "/execbox", None, None, 426),
        ("POST", "/run", None, {"code": "return 1"}, 200),
        ("POST", "/run", None, {"code": 1}, 400),
        ("POST", "/execute-tool", None, {"packageName": "left-pad", "name": "pad"}, 200),
        ("GET", "/servers", None, None, 200),
        ("GET", "/status", None, None, 200),
        ("GET", "/tools", None, None, 200),
        ("POST", "/tools/{name}", "/tools/files__read", {}, 404),
        ("POST", "/tools/{name}", "/tools/files__read", [], 400),
        ("GET", "/search", "/search?q=read", None, 200),
        ("GET", "/search", None, None, 400),
        ("GET", "/search/stats", None, None, 200),
        ("GET", "/runtime/tools.ts", None, None, 200),
        ("GET", "/runtime/tools.d.ts", None, None, 200),
        ("GET", "/approvals", None, None, 200),
        ("GET", "/approvals/{id}", "/approvals/none", None, 404),
        ("POST", "/approvals/{id}", "/approvals/none", {"decision": "allow"}, 404),
        ("POST", "/approvals/{id}", "/approvals/none", {}, 400),
        ("DELETE", "/mcp", None, None, 400),
        ("GET", "/my/abilities", None, None, 401),
        ("GET", "/flows", None, None, 200),
        ("GET", "/runs", None, None, 200),
        ("GET", "/runs", "/runs?limit=x", None, 400),
        ("GET", "/runs/{id}", "/runs/none", None, 404),
        ("POST", "/runs/{id}/cancel", "/runs/none/cancel", None, 404),
        ("GET", "/console/session", None, None, 200),
        ("POST", "/console/session", None, {"key": KEY}, 204),
        ("POST", "/console/session", None, {"key": "wrong"}, 401),
        ("POST", "/console/links", None, None, 200),
        ("GET", "/console/overview", None, None, 200),
        ("GET", "/console/system", None, None, 200),
        ("POST", "/console/doctor", None, None, 200),
        ("POST", "/console/users", None, {"name": ""}, 400),
        ("GET", "/console/users/{name}", "/console/users/none", None, 404),
        ("DELETE", "/console/keys/{id}", "/console/keys/none", None, 404),
    ],
)
def test_response_matches_the_document(
    api: OpenApiChecker,
    operator: httpx2.Client,
    method: str,
    template: str,
    path: str | None,
    body: Any,
    status: int,
) -> None:
    response = operator.request(method, path or template, json=body)
    assert response.status_code == status, response.text
    api.check_response(method, template, response)
    if api.operation(method, template)["security"]:
        refused = httpx2.request(method, f"{operator.base_url}{path or template}", json=body)
        assert refused.status_code == 401
        api.check_response(method, template, refused)


def test_responses_about_users_match_the_document(api: OpenApiChecker, operator: httpx2.Client) -> None:
    user = "/console/users/bo"
    keys, credentials = f"{user}/keys", f"{user}/credentials"
    credential = {"domain": "api.example.com", "key": "Authorization", "value": "Bearer 0123456789abcdef"}
    created = operator.post("/console/users", json={"name": "bo"})
    api.check_response("POST", "/console/users", created)
    api.check_response("POST", "/console/users", operator.post("/console/users", json={"name": "bo"}))
    key = operator.post(keys, json={"scopes": ["tpmjs"], "days": 1})
    api.check_response("POST", "/console/users/{name}/keys", key)
    for template, path, quota in (
        ("/console/users/{name}/quota", f"{user}/quota", {"weight": 2}),
        (
            "/console/keys/{id}/quota",
            f"/console/keys/{key.json()['id']}/quota",
            {"max_executions_per_day": 9},
        ),
        ("/console/keys/{id}/quota", "/console/keys/none/quota", {}),
        ("/console/users/{name}/quota", f"{user}/quota", {"weight": 0}),
    ):
        api.check_response("PUT", template, operator.put(path, json=quota))
    stored = operator.post(credentials, json=credential)
    api.check_response("POST", "/console/users/{name}/credentials", stored)
    for template, path in (("/console/users", "/console/users"), ("/console/users/{name}", user)):
        api.check_response("GET", template, operator.get(path))
    removed = operator.delete(f"{credentials}/{stored.json()['id']}")
    assert removed.status_code == 204
    api.check_response("DELETE", "/console/users/{name}/credentials/{id}", removed)
    api.check_response("DELETE", "/console/keys/{id}", operator.delete(f"/console/keys/{key.json()['id']}"))
    api.check_response("GET", "/console/users/{name}", operator.get(user))
    api.check_response("DELETE", "/console/users/{name}", operator.delete(user))
    # The scopes of this key do not allow running code.
    forbidden = httpx2.post(
        f"{operator.base_url}/run", json={}, headers={"Authorization": f"Bearer {key.json()['secret']}"}
    )
    assert forbidden.status_code == 401
    api.check_response("POST", "/run", forbidden)
