/** Tests of the globals of wrappers: fetch and its classes, Buffer, crypto. */

import assert from "node:assert";
import { evaluateInWrapper, execute, type FakeHost, test } from "./runner.ts";

const HEAD = { status: 200, statusText: "OK", url: "https://a.example/", redirected: false, kept: true };
const TEXT = { headers: [["content-type", "text/plain"]], text: "héllo", last: true };

function hostWithParts(parts: object[]): FakeHost {
  return (tool) => tool === "send" ? { ...HEAD, headers: [], ...parts[0] } : parts[1];
}

const VALUES: Record<string, [code: string, expected: unknown]> = {
  "names of classes and functions": [
    "[Headers, Request, Response, Buffer, fetch, crypto.subtle.digest].map((f) => f.name)",
    ["Headers", "Request", "Response", "Buffer", "fetch", "digest"],
  ],
  "string tags of instances": [
    "[new Headers(), new Request('https://a.example'), new Response(), Buffer.from('')].map((each) => Object.prototype.toString.call(each))",
    ["[object Headers]", "[object Request]", "[object Response]", "[object Uint8Array]"],
  ],
  "string tags of a stream and its reader": [
    "const { body } = new Response('x'); return [body, body.getReader()].map((each) => [`${each}`, each.constructor.name])",
    [
      ["[object ReadableStream]", "ReadableStream"],
      ["[object ReadableStreamDefaultReader]", "ReadableStreamDefaultReader"],
    ],
  ],
  "names of headers are case-insensitive": ["new Headers({ 'X-A': 1 }).get('x-a')", "1"],
  "values of a header are joined": [
    "const h = new Headers([['a', '1']]); h.append('A', '2'); return h.get('a')",
    "1, 2",
  ],
  "headers are listed in the order of their names": ["[...new Headers({ b: 1, a: 2 })]", [["a", "2"], [
    "b",
    "1",
  ]]],
  "values of set-cookie are not joined": [
    "const h = new Headers(); h.append('Set-Cookie', 'a=1'); h.append('set-cookie', 'b=2'); return [h.getSetCookie(), [...h]]",
    [["a=1", "b=2"], [["set-cookie", "a=1"], ["set-cookie", "b=2"]]],
  ],
  "set, has and delete of headers": [
    "const h = new Headers({ a: 1, b: 2 }); h.set('A', 3); h.delete('b'); return [h.get('a'), h.has('B'), [...h.keys()]]",
    ["3", false, ["a"]],
  ],
  "forEach of headers": [
    "const seen = []; new Headers({ a: 1 }).forEach((v, k) => seen.push(k, v)); return seen",
    ["a", "1"],
  ],
  "a header's value is trimmed": ["new Headers({ a: '  x ' }).get('a')", "x"],
  "a request": [
    "const r = new Request('https://a.example/p?q=1', { method: 'post', body: 'x' }); return [r.method, r.url, r.headers.get('content-type'), await r.text()]",
    ["POST", "https://a.example/p?q=1", "text/plain;charset=UTF-8", "x"],
  ],
  "a request of a request": [
    "const r = new Request(new Request('https://a.example/', { method: 'PUT', body: 'x', headers: { a: 1 } }), { headers: { b: 2 } }); return [r.method, r.headers.has('a'), r.headers.get('b'), await r.text()]",
    ["PUT", false, "2", "x"],
  ],
  "a form": [
    "const r = new Request('https://a.example/', { method: 'POST', body: new URLSearchParams({ a: 'b c' }) }); return [r.headers.get('content-type'), await r.text()]",
    ["application/x-www-form-urlencoded;charset=UTF-8", "a=b+c"],
  ],
  "a response": [
    "const r = new Response('x', { status: 201, statusText: 'Made', headers: { a: 1 } }); return [r.status, r.ok, r.statusText, r.headers.get('a'), r.type, r.redirected, r.url, await r.text(), r.bodyUsed]",
    [201, true, "Made", "1", "default", false, "", "x", true],
  ],
  "a response of JSON": [
    "const r = Response.json({ a: 1 }, { status: 404 }); return [r.ok, r.headers.get('content-type'), await r.json()]",
    [false, "application/json", { a: 1 }],
  ],
  "a response that redirects": [
    "const r = Response.redirect('https://a.example/x', 307); return [r.status, r.headers.get('location')]",
    [307, "https://a.example/x"],
  ],
  "a response that is an error": ["const r = Response.error(); return [r.type, r.status]", ["error", 0]],
  "a response without a body": ["[new Response().body, await new Response(null).text()]", [null, ""]],
  "bytes": [
    "const r = new Response(new Uint8Array([104, 105])); return [[...new Uint8Array(await r.clone().arrayBuffer())], [...await r.clone().bytes()], await r.text()]",
    [[104, 105], [104, 105], "hi"],
  ],
  "a clone is read independently": [
    "const r = new Response('x'), c = r.clone(); return [await r.text(), await c.text(), r.bodyUsed]",
    ["x", "x", true],
  ],
  "a body as a stream": [
    "const reader = new Response('héy').body.getReader(); const one = await reader.read(), two = await reader.read(); return [[...one.value], one.done, two.done]",
    [[104, 195, 169, 121], false, true],
  ],
  "a body in a loop": [
    "const all = []; for await (const part of new Response('ab').body) all.push(...part); return all",
    [97, 98],
  ],
  "a locked stream": ["const r = new Response('x'); r.body.getReader(); return r.body.locked", true],
  "a byte order mark is removed": ["await new Response('\\uFEFFx').text()", "x"],
  "Buffer to base64 and hex": [
    "const b = Buffer.from('héy'); return [b.toString('base64'), b.toString('hex'), b.toString(), b.length]",
    ["aMOpeQ==", "68c3a979", "héy", 4],
  ],
  "Buffer from base64 and hex": [
    "[Buffer.from('aMOpeQ', 'base64').toString(), Buffer.from('_-8', 'base64url').toString('hex'), Buffer.from('6869zz', 'hex').toString(), Buffer.from('aGk=\\n', 'base64').toString()]",
    ["héy", "ffef", "hi", "hi"],
  ],
  "Buffer of user and password": [
    "'Basic ' + Buffer.from('u:p').toString('base64')",
    "Basic dTpw",
  ],
  "Buffer.concat, alloc, isBuffer, byteLength": [
    "[Buffer.concat([Buffer.from('a'), Buffer.alloc(2, 'b'), new Uint8Array([99])]).toString(), Buffer.isBuffer(Buffer.alloc(1)), Buffer.isBuffer(new Uint8Array(1)), Buffer.byteLength('é')]",
    ["abbc", true, false, 2],
  ],
  "Buffer of bytes, a buffer and its own JSON": [
    "const b = Buffer.from([1, 2, 3]); return [[...Buffer.from(b.buffer, b.byteOffset + 1, 2)], [...Buffer.from(b.toJSON())], b.equals(Buffer.from([1, 2, 3])), b.slice(1).readUInt16BE(0)]",
    [[2, 3], [1, 2, 3], true, 515],
  ],
  "Buffer in other encodings": [
    "[Buffer.from('é', 'latin1').length, Buffer.from([233]).toString('latin1'), Buffer.from('hi', 'utf16le').toString('hex'), Buffer.from('68006900', 'hex').toString('utf16le')]",
    [1, "é", "68006900", "hi"],
  ],
  "indexOf of Buffer": ["Buffer.from('abcabc').indexOf('ca') + Buffer.from('abc').indexOf(99)", 4],
  "crypto.subtle.digest": [
    "Promise.all(['SHA-1', 'sha-256', { name: 'SHA-512' }].map(async (a) => Buffer.from(await crypto.subtle.digest(a, new TextEncoder().encode('abc'))).toString('hex').slice(0, 8)))",
    ["a9993e36", "ba7816bf", "ddaf35a1"],
  ],
  "no environment": ["Object.keys(process.env)", []],
  "internals are not visible": [
    "[typeof upstream, typeof Deno, typeof require, Object.getOwnPropertyNames(globalThis).filter((name) => name.includes('hutch'))]",
    ["undefined", "undefined", "undefined", []],
  ],
  "a function does not reveal its source": [
    "[String(wrapper).includes('payload'), wrapper + '', Function.prototype.toString.call(class A { x = 1 })]",
    [false, "function wrapper() { [native code] }", "function A() { [native code] }"],
  ],
};

for (const [name, [code, expected]] of Object.entries(VALUES)) {
  test(name, async () => assert.deepStrictEqual(await evaluateInWrapper(code), expected));
}

const THROWN: Record<string, [code: string, error: string]> = {
  "a header's value with a line break": ["new Headers({ a: 'x\\r\\nb: y' })", "TypeError"],
  "a header's value beyond Latin-1": ["new Headers({ a: '€' })", "TypeError"],
  "a header's name with a space": ["new Headers({ 'a b': 'x' })", "TypeError"],
  "a body that is read twice": [
    "const r = new Response('x'); await r.text(); return await r.text()",
    "TypeError",
  ],
  "a clone of a read response": [
    "const r = new Response('x'); await r.text(); return r.clone()",
    "TypeError",
  ],
  "a body of a GET": ["new Request('https://a.example/', { body: 'x' })", "TypeError"],
  "an invalid URL": ["await fetch('/x')", "TypeError"],
  "a URL with a password": ["await fetch('https://u:p@a.example/')", "TypeError"],
  "an invalid status": ["new Response('', { status: 99 })", "RangeError"],
  "a 204 with a body": ["new Response('x', { status: 204 })", "TypeError"],
  "broken JSON": ["await new Response('{').json()", "SyntaxError"],
  "an unknown digest": ["await crypto.subtle.digest('MD5', new Uint8Array())", "NotSupportedError"],
  "an aborted signal": [
    "await fetch('https://a.example/', { signal: AbortSignal.abort() })",
    "AbortError",
  ],
};

for (const [name, [code, error]] of Object.entries(THROWN)) {
  test(`${name} throws`, async () => {
    await assert.rejects(evaluateInWrapper(code), ({ name }: Error) => {
      assert.strictEqual(name, error);
      return true;
    });
  });
}

test("the host gets the request", async () => {
  const calls: any[] = [];
  await evaluateInWrapper(
    "await fetch(new URL('https://a.example/p'), { method: 'post', headers: { 'X-A': '1' }, body: JSON.stringify({ é: 1 }) }); return 1",
    (tool, input) => {
      calls.push([tool, input]);
      return { ...HEAD, ...TEXT };
    },
  );
  assert.deepStrictEqual(calls, [["send", {
    id: 1,
    method: "POST",
    url: "https://a.example/p",
    redirect: "follow",
    headers: [["x-a", "1"], ["content-type", "text/plain;charset=UTF-8"]],
    body: { text: '{"é":1}' },
  }]]);
});

test("a body of bytes is sent in base64", async () => {
  let sent: any;
  await evaluateInWrapper(
    "await fetch('https://a.example/', { method: 'PUT', body: new Uint8Array([255, 0]) }); return 1",
    (_, input) => {
      sent = input;
      return { ...HEAD, ...TEXT };
    },
  );
  assert.deepStrictEqual(sent.body, { base64: "/wA=" });
});

test("headers of a response from the host cannot be changed", async () => {
  const code =
    "const r = await fetch('https://a.example/'); let thrown; try { r.headers.set('a', 'b') } catch (e) { thrown = e.name } return [r.status, r.ok, r.url, r.type, thrown, await r.text()]";
  assert.deepStrictEqual(await evaluateInWrapper(code, () => ({ ...HEAD, ...TEXT })), [
    200,
    true,
    "https://a.example/",
    "basic",
    "TypeError",
    "héllo",
  ]);
});

test("the rest of a body is requested when it is read", async () => {
  const parts = hostWithParts([{ text: "ab" }, { base64: "/w==", last: true }]);
  const code = "const r = await fetch('https://a.example/'); return [...await r.bytes()]";
  assert.deepStrictEqual(await evaluateInWrapper(code, parts), [97, 98, 255]);
  const clones =
    "const r = await fetch('https://a.example/'), c = r.clone(); return [...await c.bytes(), ...await r.bytes()]";
  assert.deepStrictEqual(await evaluateInWrapper(clones, parts), [97, 98, 255, 97, 98, 255]);
});

test("an error of the host is a TypeError, before the response and in its body", async () => {
  const caught =
    "try { await (await fetch('https://a.example/')).text() } catch (e) { return [e.name, e.message] }";
  assert.deepStrictEqual(await evaluateInWrapper(caught, () => ({ error: "refused" })), [
    "TypeError",
    "refused",
  ]);
  const late = hostWithParts([{ text: "a" }, { error: "it broke off" }]);
  assert.deepStrictEqual(await evaluateInWrapper(caught, late), ["TypeError", "it broke off"]);
});

test("an aborted signal rejects fetch, and the host drops the request", async () => {
  const calls: string[] = [];
  const code =
    "const c = new AbortController(); const going = fetch('https://a.example/', { signal: c.signal }); setTimeout(() => c.abort(), 1); try { await going } catch (e) { return e.name }";
  const never: FakeHost = (tool, { id }) => {
    calls.push(`${tool} ${id}`);
    return tool === "send" ? new Promise(() => {}) : null;
  };
  assert.strictEqual(await evaluateInWrapper(code, never), "AbortError");
  assert.deepStrictEqual(calls, ["send 1", "drop 1"]);
});

const WRAPPER_JOB = { form: "wrapper", input: JSON.stringify({ payload: { a: 1 }, options: { b: 2 } }) };

test("the body of an unread response stays at the host", async () => {
  const host: FakeHost = () => ({ ...HEAD, ...TEXT });
  const code = "export const wrapper = () => fetch('https://a.example/')";
  const { result } = await execute(code, WRAPPER_JOB, host);
  assert.deepStrictEqual(result, { status: 200, statusText: "OK", headers: TEXT.headers, held: 1 });
  const read =
    "export const wrapper = async () => { const r = await fetch('https://a.example/'); await r.clone().text(); return r }";
  assert.strictEqual((await execute(read, WRAPPER_JOB, host)).result.held, 1);
  const forgetful: FakeHost = () => ({ ...HEAD, ...TEXT, kept: false });
  assert.strictEqual((await execute(read, WRAPPER_JOB, forgetful)).result.text, "héllo");
  const longer = hostWithParts([{ text: "a" }, { text: "b", last: true }]);
  assert.strictEqual((await execute(read, WRAPPER_JOB, longer)).result.text, "ab");
});

test("payload and options reach the wrapper", async () => {
  const { result } = await execute("export const wrapper = (...all) => Response.json(all)", WRAPPER_JOB);
  assert.deepStrictEqual(JSON.parse(result.text), [{ a: 1 }, { b: 2 }]);
});

test("a missing wrapper, plain data and other return values have different results", async () => {
  assert.deepStrictEqual((await execute("const a = 1", WRAPPER_JOB)).result, { missing: true });
  for (const [value, data] of [["1", 1], ["null", null], ["[]", []], ["({ a: 1 })", { a: 1 }]]) {
    const { result } = await execute(`export const wrapper = () => (${value})`, WRAPPER_JOB);
    assert.deepStrictEqual(result, { data, status: 200 });
  }
  for (const [value, returned] of [["new Map()", "an instance of Map"], ["undefined", "undefined"]]) {
    const { result } = await execute(`export const wrapper = () => ${value}`, WRAPPER_JOB);
    assert.deepStrictEqual(result, { returned });
  }
});

test("values of headers are computed independently", async () => {
  const codes = ["() => 'v'", "() => 1 + 1", "async () => 'a'", "oops", "() => {", "() => { throw null }"];
  const { result } = await execute("", { form: "headers", input: JSON.stringify(codes) });
  assert.deepStrictEqual(result, [
    { value: "v" },
    { value: "2" },
    { value: "a" },
    { error: "ReferenceError" },
    { error: "SyntaxError" },
    { error: "Error" },
  ]);
});

test("transforms and other guests have none of these globals", async () => {
  const names = "[typeof fetch, typeof Response, typeof Buffer, typeof process, typeof crypto.subtle]";
  const nothing = Array(5).fill("undefined");
  assert.deepStrictEqual(
    (await execute(`() => ${names}`, { form: "transform", input: "1" })).result,
    nothing,
  );
  assert.deepStrictEqual((await execute(names)).result, nothing);
});
