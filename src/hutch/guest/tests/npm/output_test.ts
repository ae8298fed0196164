/** Tests of a tool's output and errors. */

import assert from "node:assert";
import { NotJsonSafe } from "../../json.ts";
import { errorResult, messageOf, ToolError, toToolError } from "../../npm/errors.ts";
import { asIterator, collect, toOutput } from "../../npm/output.ts";

Deno.test("the output is encoded like JSON.stringify does", () => {
  const value = {
    date: new Date(0),
    gone: undefined,
    nan: NaN,
    map: new Map([[1, 2]]),
    own: { toJSON: () => "mine" },
    list: [undefined, () => 1],
    lone: "\ud800",
  };
  assert.strictEqual(toOutput(value), JSON.stringify(value));
  assert.strictEqual(toOutput(undefined), "null");
  assert.strictEqual(toOutput(null), "null");
  assert.strictEqual(toOutput("x"), '"x"');
});

const items: any = { items: [1, 2, 3, {}] };
items.items[3].parent = items;
const inner: any = { "a b": { c: [] } };
inner["a b"].c.push({ toJSON: () => inner["a b"] });
const deep = (levels: number) => {
  let value: unknown = 1n;
  for (let i = 0; i < levels; i++) value = [value];
  return value;
};

const REJECTED: [value: unknown, message: string | RegExp][] = [
  [items, "output.items[3].parent: refers back to output"],
  [inner, 'output["a b"].c[0]: refers back to output["a b"]'],
  [{ total: 1n }, "output.total: is a BigInt"],
  [1n, "output: is a BigInt"],
  [() => 1, "output: is a function"],
  [Symbol("s"), "output: is a symbol"],
  [{
    a: {
      toJSON() {
        throw new Error("no JSON of me");
      },
    },
  }, "output: no JSON of me"],
  [deep(100_000), /^output: (nests too deeply|.* BigInt)$/],
];

for (const [value, message] of REJECTED) {
  Deno.test(`rejected: ${message}`, () => {
    assert.throws(() => toOutput(value), (error) => {
      assert(error instanceof ToolError);
      assert.strictEqual(error.code, "serialization_error");
      if (typeof message === "string") assert.strictEqual(error.message, message);
      else assert.match(error.message, message);
      return true;
    });
  });
}

Deno.test("shared references without a cycle are encoded", () => {
  const shared = { x: 1 };
  assert.strictEqual(toOutput([shared, shared]), '[{"x":1},{"x":1}]');
});

Deno.test("the limit counts bytes exactly", () => {
  assert.strictEqual(toOutput("€€", 8), '"€€"');
  const isTooLarge = (error: unknown) => error instanceof NotJsonSafe && error.tooLarge;
  assert.throws(() => toOutput("€€", 7), isTooLarge);
});

async function* numbers(count: number) {
  for (let i = 0; i < count; i++) yield await Promise.resolve({ i });
}

Deno.test("values of generators are collected and passed on one by one", async () => {
  const partials: string[] = [];
  const text = await collect(asIterator(numbers(3))!, (json) => void partials.push(json));
  assert.strictEqual(text, '[{"i":0},{"i":1},{"i":2}]');
  assert.deepStrictEqual(partials, ['{"i":0}', '{"i":1}', '{"i":2}']);
});

Deno.test("a generator is not advanced before its last value was passed on", async () => {
  let count = 0;
  const values = {
    next: () => Promise.resolve(++count > 3 ? { done: true, value: undefined } : { value: count }),
  };
  await collect(values as AsyncIterator<unknown>, async (json) => {
    await Promise.resolve();
    assert.strictEqual(json, String(count));
  });
});

Deno.test("sync generators and async iterables are collected, lists and maps are not", async () => {
  const sync = (function* () {
    yield 1;
    yield undefined;
    return 3;
  })();
  assert.strictEqual(await collect(asIterator(sync)!, () => {}), "[1,null]");
  assert.strictEqual(await collect(asIterator(ReadableStream.from(["a"]))!, () => {}), '["a"]');
  assert.strictEqual(await collect(asIterator(numbers(0))!, () => {}), "[]");
  for (const value of [[1], new Map(), new Set(), "text", null, { next: 1 }]) {
    assert.strictEqual(asIterator(value), undefined);
  }
});

Deno.test("an endless generator stops at the limit, and an invalid value has its index", async () => {
  await assert.rejects(collect(asIterator(numbers(Infinity))!, () => {}, 1000), NotJsonSafe);
  const big = (function* () {
    yield 1;
    yield { x: 1n };
  })();
  await assert.rejects(collect(asIterator(big)!, () => {}), { message: "output[1].x: is a BigInt" });
});

const MESSAGES: [error: unknown, message: string][] = [
  [new TypeError("as it is"), "as it is"],
  ["text", "text"],
  [{ code: 7 }, '{"code":7}'],
  [null, "null"],
  [undefined, "undefined"],
  [new RangeError(""), "RangeError"],
  [new AggregateError([new Error("one"), new Error("two")]), "one; two"],
  [{ message: "of another realm" }, "of another realm"],
  [{
    get message(): string {
      throw 1;
    },
  }, "an error that cannot be read"],
];

for (const [error, message] of MESSAGES) {
  Deno.test(`message of an error: ${message}`, () => assert.strictEqual(messageOf(error), message));
}

Deno.test("the result of an error contains its name and a bounded message", () => {
  const error = new TypeError("x".repeat(100_000));
  const result = JSON.parse(errorResult(toToolError("execution_error", error, "p")));
  assert.strictEqual(result.name, "TypeError");
  assert.strictEqual(result.code, "execution_error");
  assert(result.message.length < 9_000);
});
