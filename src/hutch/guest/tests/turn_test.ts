/** Tests of a session's turns, each of which runs in the memory of the previous turn. */

import assert from "node:assert";
import { provideTypeScript } from "../source/source.ts";
import { createRunner, executeMessage, test } from "./runner.ts";

provideTypeScript(() => Deno.readTextFileSync(new URL("../dist/typescript.js", import.meta.url)));
const MAX_BYTES = 64 << 20;

interface State {
  number: number;
  vm?: object;
  memory: any[];
}

const NEW: State = { number: 0, memory: [] };

/** Runs a turn in a new runner. Returns its `done` and, if it succeeded, the new state. */
async function run(state: State, code: string, extra: object = {}): Promise<[any, State]> {
  const { promise, resolve } = Promise.withResolvers<any>(), memory: any[] = [];
  const runner = createRunner((message) => {
    if (message.type === "memory") memory.push(message);
    if (message.type === "done") resolve(message);
    if (message.type === "tool_call") {
      runner.receive({ type: "tool_result", callId: message.callId, ok: true, result: message.safeToolName });
    }
  });
  for (const part of state.memory) runner.receive(part);
  const turn = { number: state.number + 1, form: "run", maxBytes: MAX_BYTES, vm: state.vm };
  const message = executeMessage(code, { turn });
  runner.receive({ ...message, ...extra, turn: { ...turn, ...(extra as any).turn } });
  const done = await promise;
  return [done, { number: turn.number, vm: done.vm, memory }];
}

/** Runs turns one after the other and returns the result of the last one. */
async function results(...codes: string[]): Promise<any[]> {
  const found: any[] = [];
  let state = NEW;
  for (const code of codes) {
    const [done, next] = await run(state, code);
    assert(done.ok, `${code}: ${done.error?.message}`);
    found.push(done.result);
    state = next;
  }
  return found;
}

test("declarations of every kind are kept for later turns", async () => {
  const declared = `
    let a = 1, b;
    const { c, d: [d] = [4], ...rest } = { c: 3, e: 5 };
    var v = await Promise.resolve(6);
    class Point { constructor(x) { this.x = x } static origin = new Point(0) }
    function twice(x) { return helper(x) * 2 }
    function helper(x) { return x }
    async function* numbers() { yield 7 }
    enum Color { Red = 8 }
    const typed: Map<string, number> = new Map([["k", 9]])
    ;[a] = [10]`;
  const used = `return [a, b === undefined, c, d, rest, v, Point.origin.x, twice(2), twice.name,
    (await numbers().next()).value, Color.Red, typed.get("k")]`;
  const [, found] = await results(declared, used);
  assert.deepEqual(found, [10, true, 3, 4, { e: 5 }, 6, 0, 4, "twice", 7, 8, 9]);
});

test("a name can be declared again, and functions use the new value", async () => {
  const found = await results(
    "let x = 1; function read() { return x + helper() }; function helper() { return 1 }",
    "const x = 'text'; typeof x",
    "let x = 10; read()",
    "function helper() { return 5 }",
    "read()",
    "var x; x",
    "let x; x === undefined",
  );
  assert.deepEqual(found, [undefined, "string", 11, undefined, 15, 10, true]);
});

test("functions are hoisted, and a function alone is declared instead of called", async () => {
  const found = await results(
    "const y = f(1); function f(n) { return n ? f(n - 1) : 'end' }\ny",
    "function g() { return 1 }",
    "g()",
  );
  assert.deepEqual(found, ["end", undefined, 1]);
});

test("a failed turn leaves no state", async () => {
  const [, before] = await run(NEW, "let list = [1]");
  for (
    const code of [
      "list.push(2); throw new Error('no')",
      "list.push(2); for (;;);",
      "list = new Map(); list",
      "let =",
    ]
  ) {
    const [done] = await run(before, code, { options: { ...executeMessage("").options, timeoutMs: 100 } });
    assert(!done.ok);
    assert.equal(done.vm, undefined);
  }
  assert.equal((await run(before, "list.length"))[0].result, 1);
});

test("timers, calls and full logs of a turn do not reach the next one", async () => {
  const options = { ...executeMessage("").options, maxLogLines: 1 };
  const first =
    `let ticks = 0; setInterval(() => ticks++, 1); setTimeout(() => { throw new Error("late") }, 1);
    for (let i = 0; i < 500; i++) upstream.send(i);
    console.log("a"); console.log("b")`;
  const [done, state] = await run(NEW, first, { options });
  assert(done.ok && done.logsTruncated);
  const second = `await new Promise((resolve) => setTimeout(resolve, 20));
    console.log("c"); return [ticks, await Promise.all([upstream.read(), upstream.drop()])]`;
  const [next] = await run(state, second, { options });
  assert.deepEqual([next.result, next.logs], [[0, ["read", "drop"]], ["c"]]);
});

test("jobs that a turn has started run before it ends, within its time limit", async () => {
  const found = await results(
    "let n = 0; (async () => { for (let i = 0; i < 100; i++) { await 0; n++ } })(); 1",
    "n",
  );
  assert.deepEqual(found, [1, 100]);
  const options = { ...executeMessage("").options, timeoutMs: 100 };
  const [done] = await run(NEW, "(async () => { for (;;) await 0 })(); 1", { options });
  assert.equal(done.error.code, "timeout");
});

test("a tool function of an earlier turn calls the tool with its name", async () => {
  const [, state] = await run(NEW, "const { send, drop } = upstream; let old = upstream");
  const tools = Object.fromEntries(
    ["read", "drop"].map((name) => [name, { safeName: name, originalName: name }]),
  );
  const providers = [{ name: "upstream", tools, types: "" }];
  const code = "return [await drop(), await old.drop(), await send().catch((e) => [e.code, e.message])]";
  const [{ result }] = await run(state, code, { providers });
  assert.deepEqual(result, ["drop", "drop", ["tool_error", "upstream.send is not a tool of this turn"]]);
});

test("two turns that start with one state draw different random numbers", async () => {
  const [, state] = await run(NEW, "let x = Math.random()");
  const code = "return [x, Math.random(), crypto.randomUUID()]";
  const [[{ result: one }], [{ result: two }]] = [await run(state, code), await run(state, code)];
  assert.equal(one[0], two[0]);
  assert.notEqual(one[1], two[1]);
  assert.notEqual(one[2], two[2]);
});

test("errors have the position in the turn's source, and name the turn of older functions", async () => {
  const [, state] = await run(NEW, "\nfunction fail() {\n  throw new TypeError('broken')\n}");
  const [{ error }] = await run(state, "let a = 1;\nlet b = 2, c = fail()");
  assert.deepEqual([error.line, error.column], [2, 16]);
  assert.equal(error.stack, "at fail (turn 1, line 3)\nat line 2, column 16");
});

test("variables have names, types and sizes, and getters do not run", async () => {
  const code =
    `let text = "x".repeat(1000), list = [1, 2], map = new Map([[1, 2]]), bytes = new Uint8Array(500), none = null;
    function f() {}; class A {}; implicit = 1; const p = new Proxy({}, { ownKeys() { throw new Error("trap") } });
    Object.defineProperty(globalThis, "trap", { get() { throw new Error("getter") }, enumerable: true }); null`;
  const [first, state] = await run(NEW, code);
  assert(first.ok, first.error?.message);
  const [{ ok, result, vm }] = await run(state, "", { turn: { form: "variables" } });
  assert(ok && vm === undefined);
  const found = Object.fromEntries(result.map(({ name, type }: any) => [name, type]));
  const types = {
    text: "string",
    list: "Array",
    map: "Map",
    bytes: "TypedArray",
    none: "null",
    f: "function",
  };
  assert.deepEqual(found, { ...types, A: "function", implicit: "number", p: "Proxy" });
  const size = (wanted: string) => result.find(({ name }: any) => name === wanted).bytes;
  assert(size("text") >= 1000 && size("text") < 1200 && size("bytes") >= 500 && size("none") < 100);
});

test("a session that becomes too large fails its turn", async () => {
  const [, state] = await run(NEW, "let small = 1");
  const [{ ok, error }] = await run(state, "let big = Array.from({ length: 1e4 }, (_, i) => ({ i }))", {
    turn: { maxBytes: 100_000 },
  });
  assert(!ok);
  assert.equal(error.code, "memory_limit");
  assert.match(error.message, /The memory of the session has \d+ bytes; the limit is 100000/);
});
