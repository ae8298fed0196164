"""URLs and text encodings: the same assertions hold in both engines and in any browser."""

from __future__ import annotations

import base64

import pytest
from tests.conftest import Run
from tests.contract.platform import Topic, expected, program

TEXT: dict[str, Topic] = {
    "url": {
        "parts": (
            (
                "const u = new URL('https://me:pw@Example.com:8080/a/../b%20c?q=1&q=2#f');"
                " return [u.href, u.origin, u.protocol, u.username, u.password, u.host, u.hostname, u.port,"
                " u.pathname, u.search, u.hash]"
            ),
            [
                "https://me:pw@example.com:8080/b%20c?q=1&q=2#f",
                "https://example.com:8080",
                "https:",
                "me",
                "pw",
                "example.com:8080",
                "example.com",
                "8080",
                "/b%20c",
                "?q=1&q=2",
                "#f",
            ],
        ),
        "a base": ("new URL('../x?y', 'https://a.b/c/d/e').href", "https://a.b/c/x?y"),
        "a URL as a base": ("new URL('x', new URL('https://a.b/c/')).href", "https://a.b/c/x"),
        "default ports are dropped": ("new URL('http://a:80/').host", "a"),
        "international names": (
            "new URL('http://bücher.example/ä').href",
            "http://xn--bcher-kva.example/%C3%A4",
        ),
        "numbers as addresses": ("new URL('http://0x7f.1/').hostname", "127.0.0.1"),
        "not a URL": ("new URL('no')", "!TypeError"),
        "an empty base is invalid": ("new URL('a', '')", "!TypeError"),
        "canParse": (
            "[URL.canParse('a:b'), URL.canParse('x'), URL.canParse('x', 'a://b')]",
            [True, False, True],
        ),
        "parse": ("[URL.parse('x'), URL.parse('a:b').href]", [None, "a:b"]),
        "setting parts": (
            (
                "const u = new URL('https://a.b/c'); u.pathname = '/d e'; u.port = '81'; u.hash = 'h';"
                " u.search = '?x=ä'; u.hostname = 'c.d'; u.protocol = 'http'; return u.href"
            ),
            "http://c.d:81/d%20e?x=%C3%A4#h",
        ),
        "an invalid part is ignored": (
            "const u = new URL('https://a.b/'); u.port = 'x'; u.protocol = '1'; return u.href",
            "https://a.b/",
        ),
        "an invalid href throws": ("new URL('https://a.b/').href = 'no'", "!TypeError"),
        "setting the href": (
            (
                "const u = new URL('https://a.b/?x=1'); u.href = 'http://c/?y=2'; return [u.host,"
                " u.searchParams.get('y')]"
            ),
            ["c", "2"],
        ),
        "searchParams change the URL": (
            "const u = new URL('https://a.b/?x=1'); u.searchParams.append('y', 'a b&c'); return u.href",
            "https://a.b/?x=1&y=a+b%26c",
        ),
        "the URL changes searchParams": (
            (
                "const u = new URL('https://a.b/?x=1'); const p = u.searchParams; u.search = '?z=3';"
                " return [p.get('x'), p.get('z'), p === u.searchParams]"
            ),
            [None, "3", True],
        ),
        "emptied searchParams leave no question mark": (
            "const u = new URL('https://a.b/?x=1'); u.searchParams.delete('x'); return u.href",
            "https://a.b/",
        ),
        "as text and JSON": (
            "const u = new URL('a:b'); return [`${u}`, JSON.stringify({ u }), u.toString()]",
            ["a:b", '{"u":"a:b"}', "a:b"],
        ),
        "origin of other schemes": (
            "[new URL('file:///a').origin, new URL('data:,x').origin]",
            ["null", "null"],
        ),
        "lone surrogates are replaced": ("new URL('https://a.b/\\ud800').pathname", "/%EF%BF%BD"),
    },
    "search parameters": {
        "from text": ("[...new URLSearchParams('?a=1&b=2&a=3')]", [["a", "1"], ["b", "2"], ["a", "3"]]),
        "from a record": ("`${new URLSearchParams({ a: '1', b: 'x y' })}`", "a=1&b=x+y"),
        "from pairs": ("`${new URLSearchParams([['a', 1], ['a', 2]])}`", "a=1&a=2"),
        "from search parameters": ("`${new URLSearchParams(new URLSearchParams('a=1'))}`", "a=1"),
        "from a map": ("`${new URLSearchParams(new Map([['a', '1']]))}`", "a=1"),
        "decoding": (
            "const p = new URLSearchParams('a=%20+%C3%A4&b=%zz&c&=d&%E4=1'); return [...p]",
            [["a", "  ä"], ["b", "%zz"], ["c", ""], ["", "d"], ["\ufffd", "1"]],
        ),
        "encoding": (
            "`${new URLSearchParams([[\"a *-._~!'()&=+%ä\\ud800\", '']])}`",
            "a+*-._%7E%21%27%28%29%26%3D%2B%25%C3%A4%EF%BF%BD=",
        ),
        "get, getAll, has": (
            (
                "const p = new URLSearchParams('a=1&a=2');"
                " return [p.get('a'), p.getAll('a'), p.has('a'), p.has('a', '2'), p.has('a', '3'),"
                " p.get('b'), p.getAll('b')]"
            ),
            ["1", ["1", "2"], True, True, False, None, []],
        ),
        "set replaces the first and drops the rest": (
            "const p = new URLSearchParams('a=1&b=2&a=3'); p.set('a', 'x'); p.set('c', 'y'); return `${p}`",
            "a=x&b=2&c=y",
        ),
        "delete by name and by value": (
            "const p = new URLSearchParams('a=1&a=2&b=3'); p.delete('a', '1'); p.delete('b'); return `${p}`",
            "a=2",
        ),
        "sort is stable": (
            "const p = new URLSearchParams('b=1&a=2&b=0&a=1'); p.sort(); return `${p}`",
            "a=2&a=1&b=1&b=0",
        ),
        "iteration and size": (
            (
                "const p = new URLSearchParams('a=1&b=2'); const seen = []; p.forEach((v, k) => seen.push(k"
                " + v));"
                " return [[...p.keys()], [...p.values()], [...p.entries()].length, seen, p.size]"
            ),
            [["a", "b"], ["1", "2"], 2, ["a1", "b2"], 2],
        ),
    },
    "text": {
        "encode": (
            "[...new TextEncoder().encode('aé€\U0001f407')]",
            [97, 195, 169, 226, 130, 172, 240, 159, 144, 135],
        ),
        "encode gives a Uint8Array": ("new TextEncoder().encode('a') instanceof Uint8Array", True),
        "encode of nothing": ("new TextEncoder().encode().length", 0),
        "encode of a lone surrogate": ("[...new TextEncoder().encode('\\ud800a')]", [239, 191, 189, 97]),
        "NUL": ("[...new TextEncoder().encode('\\0')]", [0]),
        "encodeInto": (
            (
                "const b = new Uint8Array(4); const r = new TextEncoder().encodeInto('a€é', b); return"
                " [r.read, r.written, ...b]"
            ),
            [2, 4, 97, 226, 130, 172],
        ),
        "decode": ("new TextDecoder().decode(new Uint8Array([240, 159, 144, 135, 0, 97]))", "\U0001f407\0a"),
        "decode of nothing": ("new TextDecoder().decode()", ""),
        "decode of a buffer and of a view": (
            (
                "const b = new Uint8Array([97, 98, 99]); const d = new TextDecoder();"
                " return [b.buffer, b.subarray(1, 2), new DataView(b.buffer, 2)].map((x) => d.decode(x))"
            ),
            ["abc", "b", "c"],
        ),
        "invalid bytes become U+FFFD": (
            "new TextDecoder().decode(new Uint8Array([97, 255, 226, 130]))",
            "a\ufffd\ufffd",
        ),
        "invalid bytes throw if fatal": (
            "new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255]))",
            "!TypeError",
        ),
        "the byte order mark": (
            (
                "const b = new Uint8Array([239, 187, 191, 97]);"
                " return [false, true].map((ignoreBOM) => new TextDecoder('utf-8', { ignoreBOM }).decode(b))"
            ),
            ["a", "\ufeffa"],
        ),
        "streaming": (
            (
                "const d = new TextDecoder(); const o = { stream: true };"
                " return d.decode(new Uint8Array([226]), o) + d.decode(new Uint8Array([130]), o) +"
                " d.decode(new Uint8Array([172]), o) + d.decode()"
            ),
            "€",
        ),
        "streaming that ends early": (
            (
                "const d = new TextDecoder(); return d.decode(new Uint8Array([226, 130]), { stream: true })"
                " + d.decode()"
            ),
            "\ufffd",
        ),
        "other encodings": (
            (
                "[new TextDecoder('latin1').decode(new Uint8Array([233, 128])),"
                " new TextDecoder('utf-16le').decode(new Uint8Array([172, 32]))]"
            ),
            ["é€", "€"],
        ),
        "names of encodings": (
            "[new TextDecoder('UTF8').encoding, new TextDecoder('ascii').encoding]",
            ["utf-8", "windows-1252"],
        ),
        "unknown encoding": ("new TextDecoder('klingon')", "!RangeError"),
        "properties": (
            (
                "const d = new TextDecoder('utf-8', { fatal: true }); return [d.fatal, d.ignoreBOM, new"
                " TextEncoder().encoding]"
            ),
            [True, False, "utf-8"],
        ),
    },
    "base64": {
        "encode": ("btoa('Hello \\xff')", base64.b64encode(b"Hello \xff").decode()),
        "decode": ("atob('SGVsbG8g/w==')", "Hello ÿ"),
        "decode without padding and with white space": ("atob(' SGVs\\nbG8 ')", "Hello"),
        "empty text": ("[btoa(''), atob('')]", ["", ""]),
        "character above U+00FF": ("btoa('€')", "!InvalidCharacterError"),
        "not base64: wrong length": ("atob('a')", "!InvalidCharacterError"),
        "not base64: invalid character": ("atob('ab*d')", "!InvalidCharacterError"),
        "numbers become text": ("btoa(123)", base64.b64encode(b"123").decode()),
    },
}


@pytest.mark.parametrize("topic", TEXT)
async def test_urls_and_text_behave_as_in_a_browser(run: Run, topic: str) -> None:
    result = await run(program(TEXT[topic]))
    assert result.error is None
    assert result.result == expected(TEXT[topic])
