"""The platform that guests find: the same assertions hold in both engines, as in any browser."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.conftest import Run

# By topic: an expression or a body with `return`, and what it gives.
# What throws is written "!" and the error's name.
PLATFORM: dict[str, dict[str, tuple[str, Any]]] = {
    "timers": {
        "a timeout fires once": (
            "let n = 0; setTimeout(() => n++, 1); await new Promise((r) => setTimeout(r, 30)); return n",
            1,
        ),
        "in the order of their delays": (
            "const o = []; await Promise.all([30, 10, 20].map((d) => new Promise((r) =>"
            " setTimeout(() => { o.push(d); r() }, d)))); return o",
            [10, 20, 30],
        ),
        "equal delays in the order of their calls": (
            "const o = []; for (const n of [1, 2, 3]) setTimeout(() => o.push(n), 5);"
            " await new Promise((r) => setTimeout(r, 20)); return o",
            [1, 2, 3],
        ),
        "after microtasks": (
            "const o = []; setTimeout(() => o.push('timer'), 0); queueMicrotask(() => o.push('micro'));"
            " await new Promise((r) => setTimeout(r, 10)); return o",
            ["micro", "timer"],
        ),
        "arguments are passed": ("await new Promise((r) => setTimeout(r, 0, 'arg'))", "arg"),
        "a cleared one does not fire": (
            "let n = 0; const t = setTimeout(() => n++, 1); clearTimeout(t);"
            " await new Promise((r) => setTimeout(r, 20)); return n",
            0,
        ),
        "an interval fires until it is cleared": (
            "let n = 0; await new Promise((r) => { const t = setInterval(() =>"
            " { if (++n === 3) { clearInterval(t); r() } }, 1) });"
            " await new Promise((r) => setTimeout(r, 20)); return n",
            3,
        ),
        "clearing nothing is fine": ("clearTimeout(undefined); clearTimeout(123456); return 1", 1),
        "ids tell timers apart": ("setTimeout(() => {}) !== setTimeout(() => {})", True),
        "a delay waits at least as long": (
            "const t = Date.now(); await new Promise((r) => setTimeout(r, 25)); return Date.now() - t >= 24",
            True,
        ),
        "a delay that is no number is none": ("await new Promise((r) => setTimeout(() => r('now'), 'x'))", "now"),
        "timers inside timers": (
            "await new Promise((r) => setTimeout(() => setTimeout(() => setTimeout(() => r('deep')))))",
            "deep",
        ),
    },
    "microtasks": {
        "queueMicrotask runs before the next await goes on": (
            "const o = []; queueMicrotask(() => o.push(1)); o.push(0); await null; return o",
            [0, 1],
        ),
        "it wants a function": ("queueMicrotask('x')", "!TypeError"),
    },
    "url": {
        "parts": (
            "const u = new URL('https://me:pw@Example.com:8080/a/../b%20c?q=1&q=2#f');"
            " return [u.href, u.origin, u.protocol, u.username, u.password, u.host, u.hostname, u.port,"
            " u.pathname, u.search, u.hash]",
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
        "default ports go": ("new URL('http://a:80/').host", "a"),
        "international names": ("new URL('http://bücher.example/ä').href", "http://xn--bcher-kva.example/%C3%A4"),
        "numbers as addresses": ("new URL('http://0x7f.1/').hostname", "127.0.0.1"),
        "not a URL": ("new URL('no')", "!TypeError"),
        "an empty base is no base": ("new URL('a', '')", "!TypeError"),
        "canParse": ("[URL.canParse('a:b'), URL.canParse('x'), URL.canParse('x', 'a://b')]", [True, False, True]),
        "parse": ("[URL.parse('x'), URL.parse('a:b').href]", [None, "a:b"]),
        "setting parts": (
            "const u = new URL('https://a.b/c'); u.pathname = '/d e'; u.port = '81'; u.hash = 'h';"
            " u.search = '?x=ä'; u.hostname = 'c.d'; u.protocol = 'http'; return u.href",
            "http://c.d:81/d%20e?x=%C3%A4#h",
        ),
        "a part that cannot be is ignored": (
            "const u = new URL('https://a.b/'); u.port = 'x'; u.protocol = '1'; return u.href",
            "https://a.b/",
        ),
        "an href that cannot be throws": ("new URL('https://a.b/').href = 'no'", "!TypeError"),
        "setting the href": (
            "const u = new URL('https://a.b/?x=1'); u.href = 'http://c/?y=2'; return [u.host, u.searchParams.get('y')]",
            ["c", "2"],
        ),
        "searchParams change the URL": (
            "const u = new URL('https://a.b/?x=1'); u.searchParams.append('y', 'a b&c'); return u.href",
            "https://a.b/?x=1&y=a+b%26c",
        ),
        "the URL changes searchParams": (
            "const u = new URL('https://a.b/?x=1'); const p = u.searchParams; u.search = '?z=3';"
            " return [p.get('x'), p.get('z'), p === u.searchParams]",
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
        "origin of other schemes": ("[new URL('file:///a').origin, new URL('data:,x').origin]", ["null", "null"]),
        "lone surrogates are replaced": ("new URL('https://a.b/\\ud800').pathname", "/%EF%BF%BD"),
    },
    "search parameters": {
        "from text": ("[...new URLSearchParams('?a=1&b=2&a=3')]", [["a", "1"], ["b", "2"], ["a", "3"]]),
        "from a record": ("`${new URLSearchParams({ a: '1', b: 'x y' })}`", "a=1&b=x+y"),
        "from pairs": ("`${new URLSearchParams([['a', 1], ['a', 2]])}`", "a=1&a=2"),
        "from another": ("`${new URLSearchParams(new URLSearchParams('a=1'))}`", "a=1"),
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
            "const p = new URLSearchParams('a=1&a=2');"
            " return [p.get('a'), p.getAll('a'), p.has('a'), p.has('a', '2'), p.has('a', '3'), p.get('b'), p.getAll('b')]",
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
            "const p = new URLSearchParams('a=1&b=2'); const seen = []; p.forEach((v, k) => seen.push(k + v));"
            " return [[...p.keys()], [...p.values()], [...p.entries()].length, seen, p.size]",
            [["a", "b"], ["1", "2"], 2, ["a1", "b2"], 2],
        ),
    },
    "text": {
        "encode": ("[...new TextEncoder().encode('aé€\U0001f407')]", [97, 195, 169, 226, 130, 172, 240, 159, 144, 135]),
        "encode gives a Uint8Array": ("new TextEncoder().encode('a') instanceof Uint8Array", True),
        "encode of nothing": ("new TextEncoder().encode().length", 0),
        "encode of a lone surrogate": ("[...new TextEncoder().encode('\\ud800a')]", [239, 191, 189, 97]),
        "NUL": ("[...new TextEncoder().encode('\\0')]", [0]),
        "encodeInto": (
            "const b = new Uint8Array(4); const r = new TextEncoder().encodeInto('a€é', b); return [r.read, r.written, ...b]",
            [2, 4, 97, 226, 130, 172],
        ),
        "decode": ("new TextDecoder().decode(new Uint8Array([240, 159, 144, 135, 0, 97]))", "\U0001f407\0a"),
        "decode of nothing": ("new TextDecoder().decode()", ""),
        "decode of a buffer and of a view": (
            "const b = new Uint8Array([97, 98, 99]); const d = new TextDecoder();"
            " return [d.decode(b.buffer), d.decode(b.subarray(1, 2)), d.decode(new DataView(b.buffer, 2))]",
            ["abc", "b", "c"],
        ),
        "wrong bytes become U+FFFD": ("new TextDecoder().decode(new Uint8Array([97, 255, 226, 130]))", "a\ufffd\ufffd"),
        "or throw, if fatal": ("new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255]))", "!TypeError"),
        "the byte order mark": (
            "const b = new Uint8Array([239, 187, 191, 97]);"
            " return [new TextDecoder().decode(b), new TextDecoder('utf-8', { ignoreBOM: true }).decode(b)]",
            ["a", "\ufeffa"],
        ),
        "streaming": (
            "const d = new TextDecoder(); const o = { stream: true };"
            " return d.decode(new Uint8Array([226]), o) + d.decode(new Uint8Array([130]), o) +"
            " d.decode(new Uint8Array([172]), o) + d.decode()",
            "€",
        ),
        "streaming that ends early": (
            "const d = new TextDecoder(); return d.decode(new Uint8Array([226, 130]), { stream: true }) + d.decode()",
            "\ufffd",
        ),
        "other encodings": (
            "[new TextDecoder('latin1').decode(new Uint8Array([233, 128])),"
            " new TextDecoder('utf-16le').decode(new Uint8Array([172, 32]))]",
            ["é€", "€"],
        ),
        "names of encodings": ("[new TextDecoder('UTF8').encoding, new TextDecoder('ascii').encoding]", ["utf-8", "windows-1252"]),
        "no encoding": ("new TextDecoder('klingon')", "!RangeError"),
        "properties": (
            "const d = new TextDecoder('utf-8', { fatal: true }); return [d.fatal, d.ignoreBOM, new TextEncoder().encoding]",
            [True, False, "utf-8"],
        ),
    },
    "base64": {
        "there": ("btoa('Hello \\xff')", base64.b64encode(b"Hello \xff").decode()),
        "and back": ("atob('SGVsbG8g/w==')", "Hello ÿ"),
        "without padding and with space": ("atob(' SGVs\\nbG8 ')", "Hello"),
        "of nothing": ("[btoa(''), atob('')]", ["", ""]),
        "too wide a character": ("btoa('€')", "!InvalidCharacterError"),
        "not base64": ("atob('a')", "!InvalidCharacterError"),
        "not base64 either": ("atob('ab*d')", "!InvalidCharacterError"),
        "numbers become text": ("btoa(123)", base64.b64encode(b"123").decode()),
    },
    "clones": {
        "deep and apart": (
            "const a = { b: [1, { c: 2 }] }; const d = structuredClone(a); d.b[1].c = 3; return [a.b[1].c, d]",
            [2, {"b": [1, {"c": 3}]}],
        ),
        "cycles and shared values": (
            "const a = { x: [] }; a.self = a; a.y = a.x; const b = structuredClone(a);"
            " return [b !== a, b.self === b, b.x === b.y, b.x !== a.x]",
            [True, True, True, True],
        ),
        "dates, maps, sets, regular expressions": (
            "const c = structuredClone({ d: new Date(5), m: new Map([[{ k: 1 }, new Set([2])]]), r: /a/gi });"
            " return [c.d instanceof Date, c.d.getTime(), [...c.m][0][0], [...[...c.m][0][1]], `${c.r}`]",
            [True, 5, {"k": 1}, [2], "/a/gi"],
        ),
        "buffers and views share": (
            "const b = new ArrayBuffer(4); const u = new Uint8Array(b, 1, 2); u[0] = 7;"
            " const c = structuredClone({ u, b }); return [c.u[0], c.u.byteOffset, c.u.buffer === c.b, c.b !== b]",
            [7, 1, True, True],
        ),
        "bigints and undefined": ("const c = structuredClone([10n, undefined]); return [c[0] === 10n, c.length]", [True, 2]),
        "errors": (
            "const e = structuredClone(new RangeError('r', { cause: 1 })); return [e instanceof RangeError, e.message, e.cause]",
            [True, "r", 1],
        ),
        "prototypes go": (
            "class P { x = 1; get y() { return 2 } } const c = structuredClone(new P());"
            " return [c.constructor === Object, c]",
            [True, {"x": 1}],
        ),
        "functions cannot": ("structuredClone({ f() {} })", "!DataCloneError"),
        "symbols cannot": ("structuredClone(Symbol('s'))", "!DataCloneError"),
        "promises cannot": ("structuredClone(Promise.resolve())", "!DataCloneError"),
        "__proto__ stays a key": (
            "const c = structuredClone(JSON.parse('{\"__proto__\": {\"a\": 1}}'));"
            " return [Object.keys(c), c.a === undefined]",
            [["__proto__"], True],
        ),
        "holes stay holes": ("const c = structuredClone([1, , 3]); return [c.length, 1 in c]", [3, False]),
    },
    "randomness": {
        "bytes": (
            "const a = crypto.getRandomValues(new Uint8Array(32)); return [a.length, a.some((b) => b !== 0)]",
            [32, True],
        ),
        "the same array": ("const a = new Uint32Array(2); return crypto.getRandomValues(a) === a", True),
        "into a part": (
            "const a = new Uint8Array(64); crypto.getRandomValues(a.subarray(32));"
            " return [a.slice(0, 32).every((b) => b === 0), a.slice(32).some((b) => b !== 0)]",
            [True, True],
        ),
        "not too many": ("crypto.getRandomValues(new Uint8Array(65537))", "!QuotaExceededError"),
        "no floats": ("crypto.getRandomValues(new Float64Array(1))", "!TypeMismatchError"),
        "uuids": (
            "/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID())",
            True,
        ),
        "uuids differ": ("new Set(Array.from({ length: 100 }, () => crypto.randomUUID())).size", 100),
    },
    "aborting": {
        "a controller aborts its signal": (
            "const c = new AbortController(); const before = c.signal.aborted; c.abort();"
            " return [before, c.signal.aborted, c.signal.reason.name]",
            [False, True, "AbortError"],
        ),
        "a reason of one's own": (
            "const c = new AbortController(); c.abort('why'); return c.signal.reason",
            "why",
        ),
        "listeners hear it once": (
            "const c = new AbortController(); let n = 0; c.signal.addEventListener('abort', () => n++);"
            " c.signal.onabort = () => n += 10; c.abort(); c.abort(); return n",
            11,
        ),
        "listeners may be removed": (
            "const c = new AbortController(); let n = 0; const f = () => n++;"
            " c.signal.addEventListener('abort', f); c.signal.removeEventListener('abort', f); c.abort(); return n",
            0,
        ),
        "the event": (
            "const c = new AbortController(); let seen; c.signal.addEventListener('abort', (e) =>"
            " seen = [e.type, e.target === c.signal, e instanceof Event]); c.abort(); return seen",
            ["abort", True, True],
        ),
        "throwIfAborted": ("AbortSignal.abort(new RangeError('r')).throwIfAborted()", "!RangeError"),
        "throwIfAborted before": ("new AbortController().signal.throwIfAborted() === undefined", True),
        "a timeout": (
            "const s = AbortSignal.timeout(5); await new Promise((r) => s.addEventListener('abort', r));"
            " return [s.aborted, s.reason.name]",
            [True, "TimeoutError"],
        ),
        "any": (
            "const a = new AbortController(), b = new AbortController(); const s = AbortSignal.any([a.signal, b.signal]);"
            " const before = s.aborted; b.abort('b'); return [before, s.aborted, s.reason]",
            [False, True, "b"],
        ),
        "any that has already": ("AbortSignal.any([AbortSignal.abort('x')]).reason", "x"),
        "signals are not made by hand": ("new AbortSignal()", "!TypeError"),
        "event targets of one's own": (
            "const t = new EventTarget(); const o = []; t.addEventListener('x', (e) => o.push(e.type), { once: true });"
            " t.addEventListener('x', { handleEvent: () => o.push('object') });"
            " t.dispatchEvent(new Event('x')); t.dispatchEvent(new Event('x')); return o",
            ["x", "object", "object"],
        ),
        "a prevented default": (
            "const t = new EventTarget(); t.addEventListener('x', (e) => e.preventDefault());"
            " return [t.dispatchEvent(new Event('x', { cancelable: true })), t.dispatchEvent(new Event('x'))]",
            [False, True],
        ),
    },
    "the language": {
        "modern methods": (
            "[[3, 1, 2].toSorted(), Object.groupBy([1, 2], (n) => n % 2 ? 'odd' : 'even'), [1, 2, 3].at(-1),"
            " 'a-b'.replaceAll('-', '+'), Array.fromAsync !== undefined, [1, 2].findLast((n) => n < 2)]",
            [[1, 2, 3], {"odd": [1], "even": [2]}, 3, "a+b", True, 1],
        ),
        "iterators and generators": (
            "function* g() { yield 1; yield 2 } const it = g(); return [...it.map((x) => x * 2)]",
            [2, 4],
        ),
        "promises": (
            "const s = await Promise.allSettled([1, Promise.reject(2)]); return [s.map((x) => x.status),"
            " await Promise.any([Promise.reject(1), 2]), typeof Promise.withResolvers]",
            [["fulfilled", "rejected"], 2, "function"],
        ),
        "regular expressions": ("'2024-05'.match(/(?<y>\\d{4})-(?<m>\\d\\d)/).groups.m", "05"),
        "unicode": ("['straße'.toUpperCase(), 'e\\u0301'.normalize('NFC').length, /\\p{L}/u.test('ä')]", ["STRASSE", 1, True]),
        "big integers": ("(2n ** 64n).toString()", "18446744073709551616"),
        "dates are UTC": ("[new Date(2024, 0, 1).toISOString(), new Date().getTimezoneOffset()]", ["2024-01-01T00:00:00.000Z", 0]),
        "private members": ("class A { #x = 1; has(o) { return #x in o } } return new A().has(new A())", True),
        "globalThis": ("globalThis.a = 1; return a", 1),
        "weak references": ("const o = { a: 1 }; return new WeakRef(o).deref().a", 1),
        "DOMException": (
            "const e = new DOMException('m', 'AbortError'); return [e.name, e.message, e.code, e instanceof Error]",
            ["AbortError", "m", 20, True],
        ),
        "performance": ("typeof performance.now()", "number"),
    },
}


def program(expressions: dict[str, tuple[str, Any]]) -> str:
    """Runs every expression by itself, all at once."""
    functions = ",\n".join(
        f"{json.dumps(name)}: async () => {{ {code if 'return ' in code else f'return ({code})'} }}"
        for name, (code, _) in expressions.items()
    )
    return f"""
        const all = {{ {functions} }};
        const outcomes = Object.entries(all).map(async ([name, run]) => {{
          try {{ return [name, await run()] }} catch (e) {{ return [name, `!${{e.name}}`] }}
        }});
        return Object.fromEntries(await Promise.all(outcomes));
    """


@pytest.mark.parametrize("topic", PLATFORM)
async def test_the_platform_behaves_as_on_the_web(run: Run, topic: str) -> None:
    result = await run(program(PLATFORM[topic]))
    assert result.error is None
    assert result.result == {name: expected for name, (_, expected) in PLATFORM[topic].items()}


async def test_what_a_timer_throws_ends_the_execution_and_names_its_line(run: Run) -> None:
    result = await run("setTimeout(() => {\n  throw new Error('in a timer')\n});\nawait new Promise(() => {})")
    assert result.error is not None
    assert (result.error.code, result.error.message, result.error.line) == ("runtime_error", "in a timer", 2)


async def test_timers_that_are_left_do_not_hold_up_the_end(run: Run) -> None:
    result = await run("setTimeout(() => {}, 100000); setInterval(() => {}, 1); return 'done'")
    assert result.result == "done"
    assert result.duration_ms < 2_000


async def test_an_execution_that_waits_for_nothing_times_out(run: Run) -> None:
    result = await run("await new Promise(() => {})", timeout_ms=100)
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_there_is_no_network_by_default(run: Run) -> None:
    code = "if (typeof fetch !== 'function') return 'none'\ntry { await fetch('http://127.0.0.1:9'); return 'open' }\
 catch (e) { return 'closed' }"
    assert (await run(code)).result in ("none", "closed")
