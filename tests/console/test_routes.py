"""The console's page, signing in, and the permissions of each role."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest
from tests.support.processes import ServeProcess, hutch, running_server

KEY = "operators-sécret-key"


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServeProcess]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def guarded(home: str) -> Iterator[ServeProcess]:
    with running_server(HUTCH_API_KEY=KEY, HUTCH_HOME=home) as running:
        yield running


@pytest.fixture
def browser(guarded: ServeProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=guarded.url) as client:
        yield client


def test_page_loads_nothing_from_elsewhere(open_server: ServeProcess) -> None:
    page = httpx2.get(open_server.url + "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert sources
    for source in sources:
        assert source.startswith("/assets/")
        assert httpx2.get(open_server.url + source).status_code == 200


def test_first_view_is_small(open_server: ServeProcess) -> None:
    script = httpx2.get(open_server.url + "/assets/main.js").text
    chunks = {f"/assets/{name}" for name in re.findall(r'from"\./([\w-]+\.js)"', script)}
    assert chunks
    first_view = ("/", "/assets/main.js", "/assets/style.css", "/assets/icon.svg", *chunks)
    total = 0
    for path in first_view:
        with httpx2.stream("GET", open_server.url + path, headers={"Accept-Encoding": "gzip"}) as response:
            total += sum(len(chunk) for chunk in response.iter_raw())
            text = response.headers
        assert text["content-encoding"] == "gzip"
    assert total < 200_000


def test_unchanged_file_is_not_sent_again(open_server: ServeProcess) -> None:
    first = httpx2.get(open_server.url + "/assets/main.js")
    again = httpx2.get(open_server.url + "/assets/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2froutes.py", "%2e%2e/assets.py", ".sources", "index.html", "main.js%00"]
)
def test_only_files_of_the_bundle_are_served(open_server: ServeProcess, name: str) -> None:
    assert httpx2.get(f"{open_server.url}/assets/{name}").status_code == 404


def test_page_for_another_host_name_is_refused(open_server: ServeProcess) -> None:
    assert httpx2.get(open_server.url + "/", headers={"Host": "attacker.example"}).status_code == 403


def test_console_is_open_on_loopback_without_a_key(open_server: ServeProcess) -> None:
    session = httpx2.get(open_server.url + "/console/session").json()
    assert session["signedIn"] is True
    assert session["role"] == "admin"
    assert httpx2.get(open_server.url + "/console/overview").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "users"),
        ("DELETE", "users/ann"),
        ("POST", "users/ann/keys"),
        ("POST", "users/ann/credentials"),
        ("DELETE", "users/ann/credentials/x"),
        ("DELETE", "keys/x"),
    ],
)
def test_server_without_a_key_changes_no_users(open_server: ServeProcess, method: str, path: str) -> None:
    response = httpx2.request(method, f"{open_server.url}/console/{path}", json={"name": "ann"})
    assert response.status_code == 403
    assert "HUTCH_API_KEY" in response.json()["error"]["message"]
    assert httpx2.get(f"{open_server.url}/console/users").status_code == 200


def test_page_of_another_site_is_not_signed_in(open_server: ServeProcess) -> None:
    other = {"Origin": "https://attacker.example"}
    session = httpx2.get(open_server.url + "/console/session", headers=other)
    assert session.json()["signedIn"] is False
    assert "access-control-allow-origin" not in session.headers
    assert httpx2.get(open_server.url + "/console/overview", headers=other).status_code == 403


def test_server_with_a_key_shows_nothing_before_signing_in(browser: httpx2.Client) -> None:
    assert browser.get("/").status_code == 200
    assert browser.get("/console/session").json()["signedIn"] is False
    assert browser.get("/console/overview").status_code == 401
    assert browser.get("/console/system").status_code == 401


def test_operator_signs_in_with_the_key_and_out_again(browser: httpx2.Client) -> None:
    assert browser.post("/console/session", json={"key": "wrong"}).status_code == 401
    assert browser.post("/console/session", json={"key": KEY}).status_code == 204
    session = browser.get("/console/session").json()
    assert session["signedIn"] is True
    assert session["role"] == "admin"
    assert browser.get("/console/system").status_code == 200
    assert browser.delete("/console/session").status_code == 204
    assert browser.get("/console/system").status_code == 401


def test_change_needs_the_csrf_token(browser: httpx2.Client) -> None:
    browser.post("/console/session", json={"key": KEY})
    csrf = browser.get("/console/session").json()["csrf"]
    assert browser.post("/console/links").status_code == 401
    assert browser.post("/console/links", headers={"X-Hutch-CSRF": csrf}).status_code == 200


def test_printed_link_signs_in_once(guarded: ServeProcess, browser: httpx2.Client) -> None:
    printed = hutch("console", guarded.url, env={"HUTCH_API_KEY": KEY})
    assert printed.stdout.startswith(f"{guarded.url}/#/sign-in/")
    token = printed.stdout.strip().rpartition("/")[2]
    assert browser.post("/console/session", json={"link": token}).status_code == 204
    assert browser.get("/console/session").json()["role"] == "admin"
    again = httpx2.post(guarded.url + "/console/session", json={"link": token})
    assert again.status_code == 401
    assert "hutch console" in again.json()["error"]["message"]


def test_sign_in_from_another_site_is_refused(browser: httpx2.Client) -> None:
    other = {"Origin": "https://attacker.example"}
    assert browser.post("/console/session", json={"key": KEY}, headers=other).status_code == 403


def test_user_signs_in_and_does_not_see_the_operators_data(home: str, browser: httpx2.Client) -> None:
    assert hutch("user", "add", "bo", env={"HUTCH_HOME": home}).returncode == 0
    added = hutch("key", "add", "bo", env={"HUTCH_HOME": home})
    match = re.search(r"hk_\S+", added.stdout)
    assert match is not None, added
    key = match[0]
    assert browser.post("/console/session", json={"key": key}).status_code == 204
    session = browser.get("/console/session").json()
    assert (session["role"], session["user"]) == ("user", "bo")
    assert browser.get("/console/overview").status_code == 403
    assert browser.get("/console/system").status_code == 403
    headers = {"X-Hutch-Csrf": session["csrf"]}
    assert browser.post("/console/doctor", headers=headers).status_code == 403


@pytest.mark.parametrize("body", [{}, {"key": 3}, {"key": ""}, {"link": ["x"]}])
def test_invalid_sign_in_is_explained(browser: httpx2.Client, body: dict) -> None:
    answer = browser.post("/console/session", json=body)
    assert answer.status_code == 400
    assert "`key`: expected an API key" in answer.json()["error"]["message"]


def test_key_that_is_not_a_string_is_refused(browser: httpx2.Client) -> None:
    headers = {"Content-Type": "application/json"}
    for field in (b"key", b"link"):
        body = b'{"%b": "\\ud800"}' % field
        assert browser.post("/console/session", content=body, headers=headers).status_code == 401


def test_session_ends_with_its_key(guarded: ServeProcess, browser: httpx2.Client) -> None:
    headers = {b"Authorization": f"Bearer {KEY}".encode()}
    with httpx2.Client(base_url=guarded.url, headers=headers) as operator:
        operator.post("/console/users", json={"name": "leaver"})
        key = operator.post("/console/users/leaver/keys", json={}).json()
        assert browser.post("/console/session", json={"key": key["secret"]}).status_code == 204
        assert browser.get("/runs").status_code == 200
        operator.delete(f"/console/keys/{key['id']}")
    assert browser.get("/runs").status_code == 401
    assert browser.get("/console/session").json()["signedIn"] is False


def test_system_shows_settings_with_their_origin_and_no_secret(guarded: ServeProcess) -> None:
    answer = httpx2.get(guarded.url + "/console/system", headers={"Authorization": f"Bearer {KEY}".encode()})
    assert KEY not in answer.text
    settings = {setting["name"]: setting for setting in answer.json()["settings"]}
    assert settings["api_key"]["value"] == "***"
    assert "HUTCH_API_KEY" in settings["api_key"]["source"]
    assert settings["max_flows"]["source"] == "default"


def test_overview_is_streamed(open_server: ServeProcess) -> None:
    with httpx2.stream("GET", open_server.url + "/console/overview/events", timeout=30) as response:
        line = next(line for line in response.iter_lines() if line.startswith("data: "))
    assert '"in_flight":' in line


def test_console_command_explains_a_wrong_key_and_a_missing_server(guarded: ServeProcess) -> None:
    refused = hutch("console", guarded.url, env={"HUTCH_API_KEY": "wrong"})
    assert refused.returncode == 1
    assert "Set HUTCH_API_KEY" in refused.stderr
    as_option = hutch("console", "--url", guarded.url, env={"HUTCH_API_KEY": KEY})
    assert as_option.stdout.startswith(f"{guarded.url}/")
    for command in (("runs", "list"), ("runs", "tail", "f" * 32)):
        refused = hutch(*command, "--url", guarded.url)
        assert refused.returncode == 2
        assert "Set HUTCH_API_KEY to a valid API key of the server." in refused.stderr
    missing = hutch("console", "http://127.0.0.1:1")
    assert missing.returncode == 1
    assert "hutch serve" in missing.stderr
