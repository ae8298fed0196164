"""Web platform API of guests. The same assertions hold in both engines and in any browser."""

from __future__ import annotations

import pytest
from tests.conftest import Run
from tests.contract.platform import Topic, expected, program

CLASSES = "[URL, URLSearchParams, TextEncoder, TextDecoder, AbortController, AbortSignal, Event, EventTarget]"

PLATFORM: dict[str, Topic] = {
    "names": {
        "classes": (
            f"{CLASSES}.map((c) => c.name).join()",
            "URL,URLSearchParams,TextEncoder,TextDecoder,AbortController,AbortSignal,Event,EventTarget",
        ),
        "instances": (
            f"return {CLASSES}.map((c) => Object.prototype.toString.call(c.prototype)).join('')",
            (
                "[object URL][object URLSearchParams][object TextEncoder][object TextDecoder]"
                "[object AbortController][object AbortSignal][object Event][object EventTarget]"
            ),
        ),
        "functions": (
            (
                "[setTimeout, setInterval, clearTimeout, clearInterval, queueMicrotask, structuredClone,"
                " crypto.getRandomValues, crypto.randomUUID].map((f) => f.name).join()"
            ),
            (
                "setTimeout,setInterval,clearTimeout,clearInterval,queueMicrotask,structuredClone,"
                "getRandomValues,randomUUID"
            ),
        ),
    },
    "timers": {
        "a timeout fires once": (
            "let n = 0; setTimeout(() => n++, 1); await new Promise((r) => setTimeout(r, 30)); return n",
            1,
        ),
        "fire in the order of their delays": (
            (
                # The delays differ by at least 90 ms, because a busy machine may pause between two calls of
                # setTimeout.
                "const o = []; await Promise.all([200, 10, 100].map((d) => new Promise((r) =>"
                " setTimeout(() => { o.push(d); r() }, d)))); return o"
            ),
            [10, 100, 200],
        ),
        "equal delays fire in the order of their calls": (
            (
                "const o = []; for (const n of [1, 2, 3]) setTimeout(() => o.push(n), 5);"
                " await new Promise((r) => setTimeout(r, 20)); return o"
            ),
            [1, 2, 3],
        ),
        "fire after microtasks": (
            (
                "const o = []; setTimeout(() => o.push('timer'), 0); queueMicrotask(() => o.push('micro'));"
                " await new Promise((r) => setTimeout(r, 10)); return o"
            ),
            ["micro", "timer"],
        ),
        "arguments are passed": ("await new Promise((r) => setTimeout(r, 0, 'arg'))", "arg"),
        "a cleared timeout does not fire": (
            (
                "let n = 0; const t = setTimeout(() => n++, 1); clearTimeout(t);"
                " await new Promise((r) => setTimeout(r, 20)); return n"
            ),
            0,
        ),
        "an interval fires until it is cleared": (
            (
                "let n = 0; await new Promise((r) => { const t = setInterval(() =>"
                " { if (++n === 3) { clearInterval(t); r() } }, 1) });"
                " await new Promise((r) => setTimeout(r, 20)); return n"
            ),
            3,
        ),
        "clearing an unknown timer is allowed": (
            "clearTimeout(undefined); clearTimeout(123456); return 1",
            1,
        ),
        "ids are unique": ("setTimeout(() => {}) !== setTimeout(() => {})", True),
        "a timer waits at least its delay": (
            "const t = Date.now(); await new Promise((r) => setTimeout(r, 25)); return Date.now() - t >= 24",
            True,
        ),
        "an invalid delay counts as zero": (
            "await new Promise((r) => setTimeout(() => r('now'), 'x'))",
            "now",
        ),
        "timers inside timers": (
            "await new Promise((r) => setTimeout(() => setTimeout(() => setTimeout(() => r('deep')))))",
            "deep",
        ),
    },
    "microtasks": {
        "queueMicrotask runs before the next await resumes": (
            "const o = []; queueMicrotask(() => o.push(1)); o.push(0); await null; return o",
            [0, 1],
        ),
        "the argument must be a function": ("queueMicrotask('x')", "!TypeError"),
    },
    "clones": {
        "deep and independent": (
            (
                "const a = { b: [1, { c: 2 }] }; const d = structuredClone(a); d.b[1].c = 3; return"
                " [a.b[1].c, d]"
            ),
            [2, {"b": [1, {"c": 3}]}],
        ),
        "cycles and shared values": (
            (
                "const a = { x: [] }; a.self = a; a.y = a.x; const b = structuredClone(a);"
                " return [b !== a, b.self === b, b.x === b.y, b.x !== a.x]"
            ),
            [True, True, True, True],
        ),
        "dates, maps, sets, regular expressions": (
            (
                "const m = new Map([[{ k: 1 }, new Set([2])]]);"
                " const c = structuredClone({ d: new Date(5), m, r: /a/gi });"
                " return [c.d instanceof Date, c.d.getTime(), [...c.m][0][0], [...[...c.m][0][1]], `${c.r}`]"
            ),
            [True, 5, {"k": 1}, [2], "/a/gi"],
        ),
        "views share their buffer": (
            (
                "const b = new ArrayBuffer(4); const u = new Uint8Array(b, 1, 2); u[0] = 7;"
                " const c = structuredClone({ u, b }); return [c.u[0], c.u.byteOffset, c.u.buffer === c.b,"
                " c.b !== b]"
            ),
            [7, 1, True, True],
        ),
        "bigints and undefined": (
            "const c = structuredClone([10n, undefined]); return [c[0] === 10n, c.length]",
            [True, 2],
        ),
        "errors": (
            (
                "const e = structuredClone(new RangeError('r', { cause: 1 })); return [e instanceof"
                " RangeError, e.message, e.cause]"
            ),
            [True, "r", 1],
        ),
        "prototypes are dropped": (
            (
                "class P { x = 1; get y() { return 2 } } const c = structuredClone(new P());"
                " return [c.constructor === Object, c]"
            ),
            [True, {"x": 1}],
        ),
        "functions are refused": ("structuredClone({ f() {} })", "!DataCloneError"),
        "symbols are refused": ("structuredClone(Symbol('s'))", "!DataCloneError"),
        "promises are refused": ("structuredClone(Promise.resolve())", "!DataCloneError"),
        "__proto__ stays a key": (
            (
                'const c = structuredClone(JSON.parse(\'{"__proto__": {"a": 1}}\'));'
                " return [Object.keys(c), c.a === undefined]"
            ),
            [["__proto__"], True],
        ),
        "holes stay holes": ("const c = structuredClone([1, , 3]); return [c.length, 1 in c]", [3, False]),
    },
    "randomness": {
        "bytes": (
            "const a = crypto.getRandomValues(new Uint8Array(32)); return [a.length, a.some((b) => b !== 0)]",
            [32, True],
        ),
        "returns the same array": (
            "const a = new Uint32Array(2); return crypto.getRandomValues(a) === a",
            True,
        ),
        "into a subarray": (
            (
                "const a = new Uint8Array(64); crypto.getRandomValues(a.subarray(32));"
                " return [a.slice(0, 32).every((b) => b === 0), a.slice(32).some((b) => b !== 0)]"
            ),
            [True, True],
        ),
        "too many bytes": ("crypto.getRandomValues(new Uint8Array(65537))", "!QuotaExceededError"),
        "floats are refused": ("crypto.getRandomValues(new Float64Array(1))", "!TypeMismatchError"),
        "uuids": (
            "/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID())",
            True,
        ),
        "uuids differ": ("new Set(Array.from({ length: 100 }, () => crypto.randomUUID())).size", 100),
    },
    "aborting": {
        "a controller aborts its signal": (
            (
                "const c = new AbortController(); const before = c.signal.aborted; c.abort();"
                " return [before, c.signal.aborted, c.signal.reason.name]"
            ),
            [False, True, "AbortError"],
        ),
        "custom reason": (
            "const c = new AbortController(); c.abort('why'); return c.signal.reason",
            "why",
        ),
        "listeners are called once": (
            (
                "const c = new AbortController(); let n = 0; c.signal.addEventListener('abort', () => n++);"
                " c.signal.onabort = () => n += 10; c.abort(); c.abort(); return n"
            ),
            11,
        ),
        "listeners may be removed": (
            (
                "const c = new AbortController(); let n = 0; const f = () => n++;"
                " c.signal.addEventListener('abort', f); c.signal.removeEventListener('abort', f);"
                " c.abort(); return n"
            ),
            0,
        ),
        "the event": (
            (
                "const c = new AbortController(); let seen; c.signal.addEventListener('abort', (e) =>"
                " seen = [e.type, e.target === c.signal, e instanceof Event]); c.abort(); return seen"
            ),
            ["abort", True, True],
        ),
        "throwIfAborted": ("AbortSignal.abort(new RangeError('r')).throwIfAborted()", "!RangeError"),
        "throwIfAborted before": ("new AbortController().signal.throwIfAborted() === undefined", True),
        "a timeout": (
            (
                "const s = AbortSignal.timeout(5); await new Promise((r) => s.addEventListener('abort', r));"
                " return [s.aborted, s.reason.name]"
            ),
            [True, "TimeoutError"],
        ),
        "any": (
            (
                "const a = new AbortController(), b = new AbortController(); const s ="
                " AbortSignal.any([a.signal, b.signal]);"
                " const before = s.aborted; b.abort('b'); return [before, s.aborted, s.reason]"
            ),
            [False, True, "b"],
        ),
        "any of an aborted signal": ("AbortSignal.any([AbortSignal.abort('x')]).reason", "x"),
        "signals cannot be constructed": ("new AbortSignal()", "!TypeError"),
        "custom event targets": (
            (
                "const t = new EventTarget(); const o = []; t.addEventListener('x', (e) => o.push(e.type),"
                " { once: true });"
                " t.addEventListener('x', { handleEvent: () => o.push('object') });"
                " t.dispatchEvent(new Event('x')); t.dispatchEvent(new Event('x')); return o"
            ),
            ["x", "object", "object"],
        ),
        "a prevented default": (
            (
                "const t = new EventTarget(); t.addEventListener('x', (e) => e.preventDefault());"
                " return [t.dispatchEvent(new Event('x', { cancelable: true })), t.dispatchEvent(new"
                " Event('x'))]"
            ),
            [False, True],
        ),
    },
    "the language": {
        "modern methods": (
            (
                "[[3, 1, 2].toSorted(), Object.groupBy([1, 2], (n) => n % 2 ? 'odd' : 'even'),"
                " [1, 2, 3].at(-1),"
                " 'a-b'.replaceAll('-', '+'), Array.fromAsync !== undefined, [1, 2].findLast((n) => n < 2)]"
            ),
            [[1, 2, 3], {"odd": [1], "even": [2]}, 3, "a+b", True, 1],
        ),
        "iterators and generators": (
            "function* g() { yield 1; yield 2 } const it = g(); return [...it.map((x) => x * 2)]",
            [2, 4],
        ),
        "promises": (
            (
                "const s = await Promise.allSettled([1, Promise.reject(2)]); return [s.map((x) => x.status),"
                " await Promise.any([Promise.reject(1), 2]), typeof Promise.withResolvers]"
            ),
            [["fulfilled", "rejected"], 2, "function"],
        ),
        "regular expressions": ("'2024-05'.match(/(?<y>\\d{4})-(?<m>\\d\\d)/).groups.m", "05"),
        "unicode": (
            "['straße'.toUpperCase(), 'e\\u0301'.normalize('NFC').length, /\\p{L}/u.test('ä')]",
            ["STRASSE", 1, True],
        ),
        "big integers": ("(2n ** 64n).toString()", "18446744073709551616"),
        "dates are UTC": (
            "[new Date(2024, 0, 1).toISOString(), new Date().getTimezoneOffset()]",
            ["2024-01-01T00:00:00.000Z", 0],
        ),
        "private members": (
            "class A { #x = 1; has(o) { return #x in o } } return new A().has(new A())",
            True,
        ),
        "globalThis": ("globalThis.a = 1; return a", 1),
        "weak references": ("const o = { a: 1 }; return new WeakRef(o).deref().a", 1),
        "DOMException": (
            (
                "const e = new DOMException('m', 'AbortError'); return [e.name, e.message, e.code, e"
                " instanceof Error]"
            ),
            ["AbortError", "m", 20, True],
        ),
        "performance": ("typeof performance.now()", "number"),
    },
}


@pytest.mark.parametrize("topic", PLATFORM)
async def test_platform_behaves_as_in_a_browser(run: Run, topic: str) -> None:
    result = await run(program(PLATFORM[topic]))
    assert result.error is None
    assert result.result == expected(PLATFORM[topic])


async def test_error_thrown_in_a_timer_ends_the_execution_and_names_its_line(run: Run) -> None:
    result = await run(
        "setTimeout(() => {\n  throw new Error('in a timer')\n});\nawait new Promise(() => {})"
    )
    assert result.error is not None
    assert (result.error.code, result.error.message, result.error.line) == ("runtime_error", "in a timer", 2)


async def test_pending_timers_do_not_delay_the_end(run: Run) -> None:
    result = await run("setTimeout(() => {}, 100000); setInterval(() => {}, 1); return 'done'")
    assert result.result == "done"
    assert result.duration_ms < 2_000


async def test_execution_that_never_settles_times_out(run: Run) -> None:
    result = await run("await new Promise(() => {})", timeout_ms=100)
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_network_is_closed_by_default(run: Run) -> None:
    code = (
        "if (typeof fetch !== 'function') return 'none'\n"
        "try { await fetch('http://127.0.0.1:9'); return 'open' } catch (e) { return 'closed' }"
    )
    assert (await run(code)).result in ("none", "closed")
