/** Tests of strict JSON encoding and of log formatting. */

import assert from "node:assert";
import { NotJsonSafe, toJson, toLog } from "../json.ts";

Deno.test("plain values are encoded like JSON.stringify does", () => {
  const value = { a: [1, "x", null, true, { b: -0.5 }], gone: undefined };
  assert.strictEqual(toJson(value, "It"), '{"a":[1,"x",null,true,{"b":-0.5}]}');
  assert.strictEqual(toJson(undefined, "It"), undefined);
  assert.strictEqual(toJson(Object.create(null), "It"), "{}");
  assert.strictEqual(toJson("\ud800", "It"), '"\\ud800"');
});

const cycle: Record<string, unknown> = {};
cycle.self = [cycle];
class Point {}

const REJECTED: [value: unknown, message: RegExp][] = [
  [NaN, /NaN/],
  [{ a: [Infinity] }, /Infinity at \.a\[0\]/],
  [{ a: 1n }, /a bigint at \.a/],
  [() => 1, /a function/],
  [Symbol("s"), /a symbol/],
  [new Map(), /an instance of Map/],
  [[new Date(0)], /an instance of Date at \[0\]/],
  [new Point(), /an instance of Point/],
  [[undefined], /undefined at \[0\]/],
  [cycle, /a cycle at \.self\[0\]/],
];

for (const [value, message] of REJECTED) {
  Deno.test(`rejected: ${message.source}`, () => {
    assert.throws(() => toJson(value, "The result"), {
      message: new RegExp(`^The result .*${message.source}`),
    });
  });
}

Deno.test("shared references without a cycle are encoded", () => {
  const shared = { x: 1 };
  assert.strictEqual(toJson([shared, shared], "It"), '[{"x":1},{"x":1}]');
});

Deno.test("a small value whose JSON is enormous is rejected before it is encoded", () => {
  let value: unknown = "x".repeat(1000);
  for (let i = 0; i < 40; i++) value = [value, value];
  assert.throws(
    () => toJson(value, "The result", 100_000),
    (error) => error instanceof NotJsonSafe && error.tooLarge,
  );
});

Deno.test("the limit counts bytes exactly", () => {
  const exact: [value: unknown, bytes: number][] = [
    ["abc", 5],
    ["€€", 8],
    ["é", 4],
    ["\u{1f407}", 6],
    ["\ud800", 8],
    ["\n", 4],
    [[1, 2, 3], 7],
    [[[1], [2]], 9],
    [{ a: 1, b: [true] }, 18],
    [{ a: undefined, b: null }, 10],
    [1, 1],
  ];
  for (const [value, bytes] of exact) {
    assert.strictEqual(new TextEncoder().encode(JSON.stringify(value)).length, bytes);
    assert.strictEqual(toJson(value, "It", bytes), JSON.stringify(value));
    assert.throws(() => toJson(value, "It", bytes - 1), {
      message: `It is too large: its JSON text has more than ${bytes - 1} bytes`,
    });
  }
});

Deno.test("deep nesting is rejected", () => {
  let value: unknown = 1;
  for (let i = 0; i < 200_000; i++) value = [value];
  assert.throws(() => toJson(value, "The result"), /nested deeper than 120 levels/);
});

Deno.test("every value can be formatted for a log line", () => {
  assert.strictEqual(toLog("text"), "text");
  assert.strictEqual(toLog(undefined), "undefined");
  assert.strictEqual(toLog({ a: 1 }), '{"a":1}');
  assert.strictEqual(toLog(10n), "10n");
  assert.strictEqual(toLog(function f() {}), "[Function: f]");
  assert.strictEqual(toLog(new Map([[1, 2]])), "Map(1) [[1,2]]");
  assert.match(toLog(cycle), /object/i);
  assert.match(toLog(new TypeError("no")), /^TypeError: no/);
  assert.strictEqual(
    toLog({
      toJSON() {
        throw 1;
      },
      toString() {
        throw 2;
      },
    }),
    "[unprintable]",
  );
});
