"""Rules that hold for every route of the complete application."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette

from hutch.app.app import App
from hutch.http.auth import AccessControl
from hutch.http.middleware.run_headers import RunIdHeaders
from hutch.settings import Settings

CONTENT_TYPES = ("text/plain", "application/x-www-form-urlencoded")
# Routes whose requests have no body.
BODILESS = {"/console/doctor", "/console/links", "/runs/x/cancel", "/runs/x/resume", "/webhooks/secret"}


async def test_every_route_with_a_body_requires_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the content types that pages of other sites can send without a preflight request."""
    applications: list[Starlette] = []
    monkeypatch.setattr(
        "hutch.http.middleware.run_headers.RunIdHeaders",
        lambda web: applications.append(web) or RunIdHeaders(web),
    )
    app = await App.create(Settings(home=str(tmp_path), quickjs_warm=0, deno_warm=0))
    try:
        web = app.http_app(AccessControl(app.settings))
        (inner,) = applications
        paths = {re.sub(r"\{.*?\}", "x", route.path) for route in inner.routes}  # type: ignore[attr-defined]
        statuses: dict[tuple[str, str], int] = {}
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(web), base_url="http://127.0.0.1"
        ) as client:
            for path, method, kind in product(paths - BODILESS, ("POST", "PUT"), CONTENT_TYPES):
                headers = {"Content-Type": kind}
                answer = await client.request(method, path, content=b"{}", headers=headers)
                if answer.status_code not in (404, 405):
                    statuses[path, kind] = answer.status_code
            for path in BODILESS:
                answer = await client.post(path, headers={"Origin": "https://example.com"})
                assert answer.status_code == 403, f"pages of other sites can use {path}"
    finally:
        await app.close()
    # Not all routes answer a wrong content type with 415: the MCP SDK answers 400 at `/mcp`, routes for users
    # check the key before the body, and a server without a key refuses changes of accounts.
    expected = {(path, kind): 401 for path, kind in statuses if path.startswith(("/my/", "/abilities/"))}
    expected |= {route: 403 for route in statuses if route[0].startswith(("/console/users", "/console/keys"))}
    expected |= {("/mcp", kind): 400 for kind in CONTENT_TYPES}
    assert statuses == {route: expected.get(route, 415) for route in statuses}
    assert ("/tools/x", "text/plain") in statuses
    assert ("/execute-tool", "text/plain") in statuses
