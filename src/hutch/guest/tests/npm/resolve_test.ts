/** Tests of finding a tool by its name. */

import assert from "node:assert";
import { ToolError } from "../../npm/errors.ts";
import { resolve } from "../../npm/resolve.ts";

const tool = (result: unknown) => ({ execute: () => result });

async function call(pkg: Record<string, unknown>, name: string, env: Record<string, string> = {}) {
  return await (await resolve(pkg, name, env, "@x/y")).execute({}, {});
}

async function failure(pkg: Record<string, unknown>, name: string, env: Record<string, string> = {}) {
  const error = await resolve(pkg, name, env, "@x/y").then(() => undefined, (error) => error);
  assert(error instanceof ToolError, `${name} was resolved`);
  return { code: error.code, message: error.message };
}

const FOUND: [what: string, pkg: Record<string, unknown>, name: string][] = [
  ["a named export", { a: tool(1), default: tool(2) }, "a"],
  ["a property of the default export", { default: { a: tool(1) } }, "a"],
  ["the default export by `default`", { default: tool(1) }, "default"],
  ["the default export by its name", { default: { ...tool(1), name: "a" } }, "a"],
  ["the default export by its toolName", { default: { ...tool(1), toolName: "a" } }, "a"],
  ["the default export by its id", { default: { ...tool(1), id: "a" } }, "a"],
  ["a default factory by its function's name", {
    default: function a() {
      return tool(1);
    },
  }, "a"],
  ["CommonJS: module.exports = {…}", { default: { a: tool(1) }, "module.exports": { a: tool(1) } }, "a"],
  ["CommonJS compiled from ESM: its default", { default: { __esModule: true, default: tool(1) } }, "default"],
  ["CommonJS compiled from ESM: in its default", { default: { default: { a: tool(1) } } }, "a"],
  ["a method of a class", {
    a: new class {
      execute() {
        return 1;
      }
    }(),
  }, "a"],
  ["a callable tool, by its execute", {
    a: Object.assign(() => assert.fail(), tool(1)),
  }, "a"],
  ["a factory", { a: () => tool(1) }, "a"],
  ["an async factory", { a: () => Promise.resolve(tool(1)) }, "a"],
  ["a factory of callable tools", { a: () => Object.assign(() => {}, tool(1)) }, "a"],
];

for (const [what, pkg, name] of FOUND) {
  Deno.test(`found: ${what}`, async () => assert.strictEqual(await call(pkg, name), 1));
}

Deno.test("a factory that needs the environment gets it", async () => {
  const factory = (env?: Record<string, string>) => {
    if (!env?.A_TOKEN) throw new Error("A_TOKEN is missing");
    return tool(env.A_TOKEN);
  };
  assert.strictEqual(await call({ a: factory }, "a", { A_TOKEN: "t" }), "t");
});

Deno.test("a factory that needs an apiKey gets the first one of the environment", async () => {
  const factory = ({ apiKey }: { apiKey?: string }) => apiKey ? tool(apiKey) : undefined;
  assert.strictEqual(await call({ a: factory }, "a", { HOST: "h", MY_API_KEY: "k", B_API_KEY: "l" }), "k");
});

Deno.test("the error of a factory that cannot be configured is reported", async () => {
  const explaining = (config: any) => {
    if (!config.secret) throw new Error("A secret is required");
  };
  assert.deepStrictEqual(await failure({ a: explaining }, "a", { X_API_KEY: "k" }), {
    code: "configuration_required",
    message: "A secret is required",
  });
});

Deno.test("a function that fails on missing arguments is not a factory", async () => {
  const verify = (manifest: any) => manifest.steps.length;
  assert.deepStrictEqual(await failure({ verify }, "verify"), {
    code: "tool_invalid",
    message: 'Export "verify" of @x/y is a function that throws ' +
      "Cannot read properties of undefined (reading 'length'), not a tool with an execute() method",
  });
});

const INHERITED = ["toString", "constructor", "__proto__", "hasOwnProperty", "valueOf"];

for (const name of INHERITED) {
  Deno.test(`not found: the inherited ${name}`, async () => {
    assert.strictEqual((await failure({ a: tool(1), default: { b: 1 } }, name)).code, "tool_not_found");
  });
}

Deno.test("a wrong name is not found although there is a default, and the message lists the tools", async () => {
  const a = tool(1);
  assert.deepStrictEqual(await failure({ a, default: a, VERSION: "1" }, "b"), {
    code: "tool_not_found",
    message: '@x/y has no export "b"; its tools are a',
  });
  assert.match((await failure({ default: { c: tool(1) } }, "b")).message, /its tools are c$/);
  assert.match((await failure({ make: () => 1 }, "b")).message, /no tools, but the functions make$/);
  assert.match((await failure({}, "b")).message, /nothing that could be a tool$/);
  assert.strictEqual((await failure({ a }, "default")).code, "tool_not_found");
});

for (const name of ["execute", "name", "length", "description"]) {
  Deno.test(`not found: the part ${name} of a default tool or factory`, async () => {
    const named = { ...tool(1), name: "n", length: 1, description: "d" };
    for (const main of [named, () => tool(1)]) {
      assert.strictEqual((await failure({ default: main }, name)).code, "tool_not_found");
    }
  });
}

const INVALID: [what: string, value: unknown][] = [
  ["is an array", [tool(1)]],
  ["is null", null],
  ["is undefined", undefined],
  ["is a string", "execute"],
  ["is a number", 5],
  ["is an object with execute, x", { execute: true, x: 1 }],
  ["is an empty object", {}],
  [
    "is a class",
    class Tool {
      execute() {}
    },
  ],
  ["is a function that returns a number", (a: number, b: number) => a + b],
  ["is a function that returns an object with bash, tools", () => Promise.resolve({ bash: 1, tools: 2 })],
  ["is a function that returns undefined", () => {}],
];

for (const [what, value] of INVALID) {
  Deno.test(`invalid: export that ${what}`, async () => {
    assert.deepStrictEqual(await failure({ a: value }, "a"), {
      code: "tool_invalid",
      message: `Export "a" of @x/y ${what}, not a tool with an execute() method`,
    });
  });
}
