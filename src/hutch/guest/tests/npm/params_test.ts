/** Tests of checking parameters with the tool's own validator. */

import assert from "node:assert";
import { z } from "zod/v3";
import { locationOf } from "../../npm/errors.ts";
import { checkParams } from "../../npm/params.ts";
import * as zod3 from "../../npm/schema/zod3/convert.ts";

const execute = () => 1;
const OBJECT = { type: "object", properties: { q: { type: "string" } } };
const zod = { zod4: () => Promise.resolve(undefined), zod3: () => zod3 };

async function check(inputSchema: unknown, params: unknown): Promise<any> {
  return await checkParams({ execute, inputSchema }, params, zod);
}

Deno.test("Zod applies defaults and names every problem with its path", async () => {
  const schema = z.object({ q: z.string(), list: z.array(z.number()), n: z.number().default(3) });
  assert.deepStrictEqual(await check(schema, { q: "a", list: [1], more: 1 }), {
    problems: [],
    value: { q: "a", list: [1], n: 3 },
  });
  assert.deepStrictEqual((await check(schema, { list: [1, "x"] })).problems, [
    "params.q: Required",
    "params.list[1]: Expected number, received string",
  ]);
});

Deno.test("validators of the AI SDK, standard schemas and lazy schemas are used", async () => {
  const issues = [{ path: ["odd key", 0], message: "is odd" }];
  const failed = { success: false, error: { cause: { issues } } };
  const ai = { jsonSchema: OBJECT, validate: () => Promise.resolve(failed) };
  const standard = {
    "~standard": { validate: () => ({ issues: [{ path: [{ key: "a" }], message: "no" }] }) },
  };
  assert.deepStrictEqual(await check(ai, {}), { problems: ['params["odd key"][0]: is odd'] });
  assert.deepStrictEqual(await check(() => ai, {}), { problems: ['params["odd key"][0]: is odd'] });
  assert.deepStrictEqual(await check(standard, {}), { problems: ["params.a: no"] });
});

Deno.test("JSON Schema without a validator is returned for the host", async () => {
  assert.deepStrictEqual(await check({ jsonSchema: OBJECT }, {}), { schema: JSON.stringify(OBJECT) });
  assert.deepStrictEqual(await check(OBJECT, {}), { schema: JSON.stringify(OBJECT) });
  assert.strictEqual(await check(undefined, {}), undefined);
});

Deno.test("problems are bounded in number and length", async () => {
  const issues = Array.from({ length: 200 }, () => ({ path: ["a"], message: "x".repeat(10_000) }));
  const { problems } = await check({ "~standard": { validate: () => ({ issues }) } }, {});
  assert.strictEqual(problems.length, 51);
  assert.ok(problems.every((problem: string) => problem.length <= 500));
});

Deno.test("the location of an error is its innermost position in the package", () => {
  const frames = [
    "at helper (file:///pkg/node_modules/.deno/dep@1.0.0/node_modules/dep/lib/x.js:1:2)",
    "at execute (file:///pkg/node_modules/.deno/@s+p@1.0.0/node_modules/@s/p/dist/a%20b.js:30:4)",
    "at async file:///bundle/npm.js:1:1",
  ];
  const stack = ["Error: no", ...frames].join("\n    ");
  assert.strictEqual(locationOf({ stack }, "@s/p"), "dist/a b.js:30:4");
  assert.strictEqual(locationOf({ stack }, "other"), "dep/lib/x.js:1:2");
  assert.strictEqual(locationOf({ stack: "Error: no\n    at a (file:///x.js:1:1)" }, "p"), undefined);
  assert.strictEqual(locationOf({ stack: 1 }, "p"), undefined);
});
