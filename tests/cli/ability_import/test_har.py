"""Conversion of HAR files to abilities: groups of requests, parameters and credentials, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.ability_import.conftest import EchoApi, add_imported
from tests.support.processes import hutch

from hutch.cli.ability_import import har
from hutch.cli.ability_import.har import import_har
from hutch.cli.ability_import.models import ImportResult
from hutch.errors import InvalidInput

SECRET = "hunter2secretvalue"
BROWSER = {
    ":authority": "a.example",
    "user-agent": "Mozilla/5.0",
    "sec-fetch-mode": "cors",
    "referer": f"https://a.example/?token={SECRET}",
    "accept": "application/json",
}


def entry(
    url: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: object = None,
    response_type: str = "application/json; charset=utf-8",
) -> dict[str, Any]:
    pairs = {**BROWSER, **(headers or {})}
    request: dict[str, Any] = {
        "method": method,
        "url": url,
        "httpVersion": "HTTP/2",
        "headers": [{"name": name, "value": value} for name, value in pairs.items()],
        "queryString": [],
        "cookies": [],
    }
    if body is not None:
        request["postData"] = {"mimeType": "application/json", "text": json.dumps(body)}
    response = {"status": 200, "content": {"mimeType": response_type, "text": f'{{"token": "{SECRET}"}}'}}
    return {"startedDateTime": "2026-11-17T10:00:00Z", "request": request, "response": response}


def import_entries(*entries: Any) -> ImportResult:
    text = json.dumps({"log": {"version": "1.2", "creator": {"name": "test"}, "entries": entries}})
    result = import_har(text)
    assert SECRET not in json.dumps([ability.definition for ability in result.abilities])
    assert SECRET not in "".join(result.notes)
    return result


def test_requests_with_the_same_path_become_one_ability() -> None:
    result = import_entries(
        entry("https://a.example/users/17/posts?page=1&sort=new"),
        entry("https://a.example/users/18/posts?page=2&sort=new"),
        entry("https://a.example/users/18/posts", "POST", body={"title": "x", "draft": True}),
        entry("https://a.example/style.css", response_type="text/css"),
        entry("https://a.example/users", "OPTIONS"),
    )
    listed, created = (ability.definition for ability in result.abilities)
    assert listed["ability_id"] == "a_example_get_users_users_id_posts"
    assert listed["input_schema"]["required"] == ["users_id"]
    assert listed["static_headers"] == {"accept": "application/json"}
    # The recorded requests have different values of `page`, so `page` has no default.
    assert 'url.searchParams.set("sort", payload["sort"] ?? "new");' in listed["wrapper_code"]
    assert 'if (payload["page"] !== undefined)' in listed["wrapper_code"]
    assert {**created["input_schema"]["properties"]} == {
        "users_id": {"type": ["string", "integer"]},
        "title": {"type": "string"},
        "draft": {"type": "boolean"},
    }
    assert result.notes[0].startswith("left out 2 of 5 entries")


@pytest.mark.parametrize(
    ("recorded", "credentials"),
    [
        (entry("https://a.example/x", headers={"Authorization": SECRET}), [("Authorization", "header")]),
        (entry("https://a.example/x", headers={"X-CSRF-Token": "abc"}), [("X-CSRF-Token", "header")]),
        (entry("https://a.example/x", headers={"cookie": f"sid={SECRET}"}), [("Cookie", "cookie")]),
        (entry(f"https://a.example/x?api_key={SECRET}"), [("api_key", "query")]),
        (entry("https://a.example/x", "POST", body={"password": SECRET, "a": 1}), [("password", "body")]),
        (entry(f"https://a.example/x/{SECRET}0123456789/y"), []),
    ],
)
def test_secrets_become_credentials(recorded: Any, credentials: list[tuple[str, str]]) -> None:
    (ability,) = import_entries(recorded).abilities
    found = [(each.key, each.kind) for each in ability.credentials]
    assert found == [(f"a.example::{name}", kind) for name, kind in credentials]


def test_nested_secret_leaves_the_entry_out() -> None:
    nested = entry("https://a.example/x", "POST", body={"user": {"password": SECRET}})
    result = import_entries(nested, entry("https://a.example/y"))
    assert [ability.ability_id for ability in result.abilities] == ["a_example_get_y"]
    assert any("'user' contains a nested secret" in note for note in result.notes)


def test_import_without_credentials_says_that_browsers_leave_them_out() -> None:
    assert "sensitive data" in import_entries(entry("https://a.example/x")).notes[-1]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"log": {"entries": 3}}', "x" * 10])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        import_har(text)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {"request": []},
        {"request": {"method": "GET", "url": 3}},
        entry("file:///etc/passwd"),
        entry("https://[/x"),
        entry("https://a.example/x", "GET\r\nX: 1"),
        entry("https://a.example/x", headers={"bad name": "x"}),
        entry("https://a.example/x", headers={"x": "a\r\nb: c"}),
        entry('https://a.example");fetch("https://evil.example', "POST"),
    ],
)
def test_broken_entries_are_left_out(broken: Any) -> None:
    result = import_entries(broken, entry("https://a.example/y"))
    assert [ability.ability_id for ability in result.abilities] == ["a_example_get_y"]


def test_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(har, "MAX_ABILITIES", 2)
    result = import_entries(*(entry(f"https://a.example/p{letter}") for letter in "abcd"))
    assert len(result.abilities) == 2
    assert any("the maximum is 2 abilities" in note for note in result.notes)
    monkeypatch.setattr(har, "MAX_ENTRIES", 2)
    with pytest.raises(InvalidInput, match="at most 2 entries"):
        import_entries(*(entry("https://a.example/") for _ in range(3)))


def test_imported_ability_runs(echo_api: EchoApi, tmp_path: Path) -> None:
    code = '"); fetch("http://x"); //'
    entries = [
        entry(f"{echo_api.url}/users/17?{code}=1&page=1", headers={"X-Api-Key": SECRET}),
        entry(f"{echo_api.url}/users/17", "POST", body={code: "y", "n": 2, "password": SECRET}),
    ]
    (tmp_path / "a.har").write_text(json.dumps({"log": {"entries": entries}}))
    notes = add_imported("--har", "a.har", folder=tmp_path)
    assert any("--kind header 127.0.0.1::X-Api-Key" in note for note in notes)
    stored = hutch("credential", "set", "--user", "bo", "127.0.0.1::X-Api-Key", input=SECRET)
    assert stored.returncode == 0
    body = ("--kind", "body", "127.0.0.1::password")
    assert hutch("credential", "set", "--user", "bo", *body, input=SECRET).returncode == 0
    before = len(echo_api.seen)
    echo = echo_api.run("127_0_0_1_get_users_users_id", users_id="a/b", page=3)
    assert echo["request"] == "GET /users/a%2Fb?%22%29%3B+fetch%28%22http%3A%2F%2Fx%22%29%3B+%2F%2F=1&page=3"
    assert echo["headers"]["x-api-key"] == "[redacted]"
    created = echo_api.run("127_0_0_1_post_users_users_id", users_id=18, n=3)
    assert json.loads(created["body"]) == {code: "y", "n": 3, "password": "[redacted]"}
    assert created["headers"]["content-type"] == "application/json"
    assert len(echo_api.seen) == before + 2


def test_long_values_are_searched_in_linear_time() -> None:
    long = entry("https://a.example/x", "POST", body={"text": "a" * 2_000_000, "deep": []})
    deep = entry("https://a.example/y", "POST")
    deep["request"]["postData"] = {
        "mimeType": "application/json",
        "text": '{"a":' + "[" * 5_000 + "]" * 5_000 + "}",
    }
    result = import_entries(long, deep, entry("https://a.example/z"))
    assert "a_example_get_z" in [ability.ability_id for ability in result.abilities]


def test_command_takes_exactly_one_source() -> None:
    assert hutch("ability", "import").returncode == 2
    assert hutch("ability", "import", "--curl", "-", "--har", "x").returncode == 2
    assert hutch("ability", "import", "--har", "x", "--operations", "a").returncode == 2
    missing = hutch("ability", "import", "--har", "missing.har")
    assert (missing.returncode, missing.stdout) == (2, "")
