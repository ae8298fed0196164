"""Conversion of curl commands to abilities: requests, parameters and credentials, without secrets."""

from __future__ import annotations

import json

import pytest
from tests.support.processes import hutch

from hutch.cli.ability_import.curl import import_curl
from hutch.cli.ability_import.models import ImportedAbility
from hutch.errors import InvalidInput
from hutch.protocols.abilities.definition import parse_definition

SECRET = "hunter2secretvalue"


def needs(imported: ImportedAbility) -> list[tuple[str, str]]:
    parse_definition(imported.definition)
    assert SECRET not in json.dumps(imported.definition)
    return [(credential.key, credential.kind) for credential in imported.credentials]


@pytest.mark.parametrize(
    ("arguments", "credentials"),
    [
        (f"-H 'Authorization: Bearer {SECRET}'", [("a.example::Authorization", "header")]),
        (f"-HX-Api-Key:{SECRET}", [("a.example::X-Api-Key", "header")]),
        (f"-b 'sid={SECRET}'", [("a.example::Cookie", "cookie")]),
        (f"--user bo:{SECRET}", [("a.example::Authorization", "header")]),
        (f"-G -d api_key={SECRET} -d page=1", [("a.example::api_key", "query")]),
        (f"-d user=bo -d password={SECRET}", [("a.example::password", "body")]),
        (f'--json \'{{"token": "{SECRET}", "a": [1]}}\'', [("a.example::token", "body")]),
        # Without a Content-Type, curl sends the JSON as a form, in which the whole JSON is the name of a
        # field.
        (f'-d \'{{"password": "{SECRET}"}}\'', [("a.example::password", "body")]),
        ("-H 'X-Other: abcdefghij0123456789klmnop'", [("a.example::X-Other", "header")]),
        ("-sSL --compressed -H 'Accept: text/html'", []),
    ],
)
def test_secrets_become_credentials(arguments: str, credentials: list[tuple[str, str]]) -> None:
    assert needs(import_curl(f"curl {arguments} https://a.example/x")) == credentials


def test_parameters_and_headers_are_kept() -> None:
    command = "curl -X PUT 'https://a.example/x?page=2' -H 'Accept: text/html' --json '{\"n\": 1}'"
    definition = import_curl(command).definition
    assert definition["ability_id"] == "a_example_put_x"
    assert definition["static_headers"] == {"Accept": "application/json", "Content-Type": "application/json"}
    assert definition["input_schema"]["properties"] == {
        "page": {"type": ["string", "integer"]},
        "n": {"type": "integer"},
    }
    assert 'url.searchParams.set("page", payload["page"] ?? "2");' in definition["wrapper_code"]
    assert 'method: "PUT", body: JSON.stringify({ "n": payload["n"] ?? 1 })' in definition["wrapper_code"]


@pytest.mark.parametrize(
    "command",
    [
        "wget https://a.example",
        "curl 'https://a.example",
        "curl",
        "curl ftp://a.example/",
        f"curl https://bo:{SECRET}@a.example/",
        f"curl https://a.example/{SECRET}0123456789/x",
        f"curl https://a.example -d '<{SECRET}>' -H 'content-type: text/xml'",
        f'curl https://a.example --json \'{{"a": {{"password": "{SECRET}"}}}}\'',
        "curl https://a.example -d @file",
        f"curl https://a.example --cert {SECRET}",
    ],
)
def test_other_commands_are_refused_without_their_values(command: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        import_curl(command)
    assert SECRET not in str(caught.value)


def test_command_prints_the_definition_and_what_to_set() -> None:
    command = f"curl https://a.example/x -H 'Authorization: Bearer {SECRET}'"
    done = hutch("ability", "import", "--id", "get_x", "--curl", "-", input=command)
    assert (done.returncode, json.loads(done.stdout)["ability_id"]) == (0, "get_x"), done.stderr
    assert "hutch credential set --user NAME --kind header a.example::Authorization" in done.stderr
    assert SECRET not in done.stdout + done.stderr
