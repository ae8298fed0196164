from __future__ import annotations

import base64
import json

import pytest

from hutch.errors import InvalidInput
from hutch.vault import client_import

# The public client's own test vector.
CIPHERTEXT = "iQdNE3ruUSfEK/7bugGb+HhaJUBcFMIdNpApDrRYqpM="
IV = base64.b64encode(bytes(range(12))).decode()
VECTOR = json.dumps({"ciphertext": CIPHERTEXT, "iv": IV})


def test_vector_of_the_public_client_is_decrypted() -> None:
    assert client_import.decrypt_value(VECTOR, "meowmeow") == "Bearer sk-abc123"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (VECTOR, "meow", "encrypted with another key, or was altered"),
        (VECTOR, "", "key: expected the text that the value was encrypted with"),
        (VECTOR, "\ud800", "key: expected text that can be encoded as UTF-8"),
        (VECTOR.replace("iQd", "iQe"), "meowmeow", "another key, or was altered"),
        (json.dumps({"ciphertext": CIPHERTEXT, "iv": "AAAA"}), "meowmeow", "iv: expected 12 bytes, got 3"),
        (json.dumps({"ciphertext": "AAAA", "iv": IV}), "meowmeow", "at least 16 bytes, got 3"),
        (json.dumps({"ciphertext": "*", "iv": IV}), "meowmeow", "ciphertext: expected base64"),
        (json.dumps({"ciphertext": CIPHERTEXT}), "meowmeow", 'expected {"ciphertext"'),
        (json.dumps({"ciphertext": 1, "iv": IV}), "meowmeow", 'expected {"ciphertext"'),
        ("Bearer sk-plain", "meowmeow", 'expected {"ciphertext"'),
        ("", "meowmeow", 'expected {"ciphertext"'),
        ("[" * 100_000, "meowmeow", 'expected {"ciphertext"'),
        ('{"more": ' + "[" * 100_000, "meowmeow", 'expected {"ciphertext"'),
        ("\ud800", "meowmeow", 'expected {"ciphertext"'),
    ],
)
def test_errors_contain_neither_value_nor_key(text: str, key: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        client_import.decrypt_value(text, key)
    assert message in str(caught.value)
    assert "sk-" not in str(caught.value)
    assert "meow" not in str(caught.value)


def row(**change: str) -> dict[str, str]:
    return {
        "credentialId": "c1",
        "domain": "api.example.com",
        "credentialType": "header",
        "credentialKey": "api.example.com::Authorization",
        "encryptedValue": VECTOR,
        **change,
    }


@pytest.mark.parametrize("form", ["[%s]", '{"success": true, "credentials": [%s]}'])
def test_export_is_a_list_or_an_object_with_a_list(form: str) -> None:
    rows = (row(), row(credentialType="cookie", credentialKey="sid"))
    found = client_import.parse_export(form % ", ".join(map(json.dumps, rows)))
    opened = client_import.decrypt_export(found, "meowmeow")
    assert [(str(name), name.kind, value) for name, value in opened] == [
        ("api.example.com::Authorization", "header", "Bearer sk-abc123"),
        ("api.example.com::sid", "cookie", "Bearer sk-abc123"),
    ]
    assert CIPHERTEXT not in repr(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON"),
        ("[1]", "Expected `object`, got `int` - at `$[0]`"),
        ('[{"domain": "a.example"}]', "missing required field `credentialKey`"),
        ("[" * 100_000, "credentials: expected a list"),
    ],
)
def test_invalid_export_is_explained(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        client_import.parse_export(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": "https://a"}, "credentials[1]: domain: expected the name of a host"),
        ({"credentialType": "oauth"}, "credentials[1]: kind: expected one of"),
        ({"encryptedValue": "{}"}, "credentials[1]: value: expected"),
    ],
)
def test_first_invalid_credential_is_named_by_its_index(change: dict[str, str], message: str) -> None:
    found = client_import.parse_export(json.dumps([row(), row(**change)]))
    with pytest.raises(InvalidInput) as caught:
        client_import.decrypt_export(found, "meowmeow")
    assert message in str(caught.value)
