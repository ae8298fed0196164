from __future__ import annotations

import base64
import html
import json
import random
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.egress import redaction
from hutch.egress.redaction import MARK, Redactor, cached_redactor, prepare_redactor

SECRET = 'sk/live+ä b&c="d"\'e\\f~Zz9'
TOKEN = "sk-abcdefGHIJKL0123456789"

FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "url": lambda s: quote(s, safe=""),
    "url, lower case": lambda s: re.sub("%..", lambda found: found[0].lower(), quote(s, safe="")),
    "form": quote_plus,
    "path": quote,
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
    "json": lambda s: json.dumps(s)[1:-1],
    "json, beyond ASCII": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "json, slashes": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "json for html": lambda s: json.dumps(s)[1:-1].replace("&", "\\u0026"),
    "html": html.escape,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [TOKEN, SECRET])
def test_secret_is_redacted_in_every_form(secret: str, form: str) -> None:
    written = FORMS[form](secret)
    redactor = Redactor([secret])
    assert redactor.text(f"<{written}>") == f"<{MARK}>"
    assert redactor.data(f"<{written}>".encode()) == f"<{MARK}>".encode()


@pytest.mark.parametrize("urlsafe", [False, True])
@pytest.mark.parametrize("after", ["", "!", "!!"])
@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("secret", [TOKEN, SECRET])
def test_secret_is_redacted_in_base64_at_any_offset(
    secret: str, before: str, after: str, urlsafe: bool
) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    redacted = Redactor([secret]).data(encode(f"{before}{secret}{after}".encode()))
    assert MARK.encode() in redacted
    # In Base64, one character can encode bits of two bytes. So a few characters at the start and the end of
    # the secret may remain.
    assert len(redacted) <= len(MARK) + 12


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "Token ", "Bot "])
def test_token_is_redacted_without_its_scheme(scheme: str) -> None:
    redactor = Redactor([scheme + TOKEN])
    assert redactor.text(f'{{"token": "{TOKEN}"}}') == f'{{"token": "{MARK}"}}'
    assert TOKEN not in redactor.text(scheme + TOKEN)


def test_basic_login_is_redacted_decoded_and_by_its_password() -> None:
    encoded = base64.b64encode(b"someone:correct horse").decode()
    redactor = Redactor([f"Basic {encoded}"])
    assert redactor.text(f"a {encoded} b") == f"a {MARK} b"
    assert redactor.text("a someone:correct horse b") == f"a {MARK} b"
    assert redactor.text("a correct horse b") == f"a {MARK} b"
    key_alone = base64.b64encode(b"sk_live_abc:").decode()
    assert Redactor([f"Basic {key_alone}"]).text("sk_live_abc") == MARK


def test_cookie_values_are_redacted_separately_and_decoded() -> None:
    redactor = Redactor(["theme=dark; session=s%3Aabcdef0123; csrf=0123456789"])
    assert redactor.text("s%3Aabcdef0123 s:abcdef0123 0123456789 dark") == f"{MARK} {MARK} {MARK} dark"


def test_short_texts_are_not_redacted() -> None:
    assert not Redactor(["", "abc", " a "])
    assert Redactor(["abc"]).text("abcabc") == "abcabc"
    assert Redactor(["abcd"]).text("xabcdx") == f"x{MARK}x"


def test_longest_of_nested_secrets_is_redacted() -> None:
    redactor = Redactor(["secret", "secret-and-more"])
    assert redactor.text("secret-and-more secret") == f"{MARK} {MARK}"


def test_overlapping_secrets_are_redacted_completely() -> None:
    redactor = Redactor(["abcdef-ghi", "ghi-klmnop"])
    assert redactor.text("<abcdef-ghi-klmnop>") == f"<{MARK}>"
    assert redactor.text("<abcdef-ghighi-klmnop>") == f"<{MARK}{MARK}>"
    stream = redactor.stream()
    parts = [stream.feed(byte.encode()) for byte in "<abcdef-ghi-klmnop>"]
    assert b"".join(parts) + stream.end() == f"<{MARK}>".encode()


async def test_json_values_are_redacted_in_strings_and_keys() -> None:
    redactor = Redactor([SECRET])
    value = {"a": [1, None, True, 1.5, {SECRET: f"x{SECRET}"}], "b": "plain"}
    assert await redactor.value(value) == {"a": [1, None, True, 1.5, {MARK: f"x{MARK}"}], "b": "plain"}
    untouched = {"a": ["b", {"c": 1}]}
    assert await redactor.value(untouched) is untouched
    assert await redactor.value(SECRET) == MARK


async def test_headers_are_redacted_in_names_and_values() -> None:
    redactor = Redactor([TOKEN])
    headers = [("set-cookie", f"a={TOKEN}"), ("set-cookie", "b"), (TOKEN, "c")]
    assert await redactor.headers(headers) == [("set-cookie", f"a={MARK}"), ("set-cookie", "b"), (MARK, "c")]


async def test_lone_surrogates_and_large_numbers_are_unchanged() -> None:
    redactor = Redactor([TOKEN])
    assert redactor.text(f"\ud800{TOKEN}") == f"\ud800{MARK}"
    assert await redactor.value(["\ud800", TOKEN, 10**40]) == ["\ud800", MARK, 10**40]


def test_secret_is_redacted_in_latin_1() -> None:
    redactor = Redactor(["pässwörd"])
    assert redactor.data("<pässwörd>".encode("latin-1")) == f"<{MARK}>".encode()
    assert redactor.data("<pässwörd>".encode()) == f"<{MARK}>".encode()
    assert redactor.data(base64.b64encode("pässwörd".encode("latin-1"))).startswith(MARK.encode())


@pytest.mark.parametrize("form", ["raw", "url", "hex", "json"])
def test_secret_split_between_pieces_is_redacted(form: str) -> None:
    written = FORMS[form](SECRET).encode()
    data = b"before " + written + b" between " + written + b" after"
    expected = data.replace(written, MARK.encode())
    for at in range(len(data) + 1):
        stream = Redactor([SECRET, TOKEN]).stream()
        assert stream.feed(data[:at]) + stream.feed(data[at:]) + stream.end() == expected


def test_secret_in_pieces_of_any_size_is_redacted() -> None:
    rng = random.Random(7)
    written = [FORMS[form](secret).encode() for form in FORMS for secret in (SECRET, TOKEN)]
    for _ in range(50):
        parts = [rng.choice([*written, b"sk", b"sk-abc", b" ", b"%73", b"some text"]) for _ in range(40)]
        data = b"".join(parts)
        redactor = Redactor([SECRET, TOKEN])
        stream, out, at = redactor.stream(), b"", 0
        while at < len(data):
            size = rng.choice([1, 2, 5, 17, 100])
            out += stream.feed(data[at : at + size])
            at += size
        assert out + stream.end() == redactor.data(data)


def test_data_that_cannot_become_a_secret_is_not_held_back() -> None:
    stream = Redactor([TOKEN]).stream()
    assert stream.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert stream.feed(b"data: sk-ab") == b"data: "
    assert stream.feed(b"x") == b"sk-abx"


def test_without_secrets_data_is_not_copied() -> None:
    data = b"x" * 100
    redactor = Redactor([])
    assert redactor.data(data) is data
    assert redactor.stream().feed(data) is data
    assert not redactor


def test_repr_does_not_contain_secrets() -> None:
    assert TOKEN not in repr(Redactor([TOKEN]))


@pytest.mark.parametrize("length", [1_024, 1_025, 5_000, 60_000])
def test_long_secrets_are_redacted_completely(length: int) -> None:
    secret = "".join(f"{at:x}/" for at in range(length))[:length]
    redactor = Redactor([secret])
    for text in (secret, base64.b64encode(b"x" + secret.encode()).decode(), secret.encode().hex()):
        stream = redactor.stream()
        data = f"<{text}>".encode()
        step = 700 if length < 10_000 else 7_000
        parts = [stream.feed(data[at : at + step]) for at in range(0, len(data), step)]
        received = (b"".join(parts) + stream.end()).decode()
        left = received.replace(MARK, "")
        # The redactor searches for long secrets in pieces. Where two pieces meet, one Base64 character
        # encodes bits of both pieces and may remain.
        assert len(left) <= 6 + 3 * (length // 1_000 + 1)
        assert redactor.text(text).count(MARK) >= length // 1_024


@repeat_on_stall
async def test_value_that_is_made_of_a_secret_does_not_block_the_event_loop() -> None:
    secret = "\\" * 1_000
    redactor = Redactor([secret])
    await redactor.value([secret])
    text = "\\" * 500_000
    async with LoopStalls() as stalls:
        redacted = await redactor.value({"long": f"<{text}>", secret: [1, secret]})
    assert redacted == {"long": f"<{MARK}>", MARK: [1, MARK]}
    stalls.assert_short()


@repeat_on_stall
async def test_long_secrets_do_not_block_the_event_loop() -> None:
    """Creating this redactor takes 0.4 s, and searching the text takes another 0.2 s."""
    rng = random.Random(1)
    secrets = tuple("".join(chr(rng.randrange(33, 127)) for _ in range(16_000)) for _ in range(4))
    text = "".join(f"{secrets[0][:990]} " for _ in range(256))
    redaction._cache.clear()
    async with LoopStalls() as stalls:
        redactor = await prepare_redactor(secrets)
        assert await redactor.long_text(text) == text
    assert cached_redactor(secrets) is redactor
    assert redactor.text(f"<{secrets[3]}>").replace(MARK, "") == "<>"
    stalls.assert_short()
