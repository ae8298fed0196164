/** Tests of the limits of logs. */

import assert from "node:assert";
import { Logs } from "../logs.ts";

Deno.test("lines beyond the limit are dropped and mark the logs as truncated", () => {
  const logs = new Logs(2, 100);
  logs.add("a");
  logs.add("b");
  assert.strictEqual(logs.truncated, false);
  assert.strictEqual(logs.add("c"), false);
  assert.deepStrictEqual(logs.lines, ["a", "b"]);
  assert.strictEqual(logs.truncated, true);
});

Deno.test("characters are counted over all lines, and the last line is truncated", () => {
  const logs = new Logs(10, 5);
  logs.add("abc");
  logs.add("defg");
  logs.add("h");
  assert.deepStrictEqual(logs.lines, ["abc", "de"]);
  assert.strictEqual(logs.truncated, true);
});

Deno.test("a lone surrogate is replaced", () => {
  const logs = new Logs(1, 10);
  logs.add("a\ud800");
  assert.deepStrictEqual(logs.lines, ["a\ufffd"]);
});
