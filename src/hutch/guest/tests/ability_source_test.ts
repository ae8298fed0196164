/** Tests of the source of wrappers and transforms. */

import assert from "node:assert";
import { prepareTransform, prepareWrapper } from "../source/ability_source.ts";
import { GuestSyntaxError } from "../source/program.ts";
import { provideTypeScript } from "../source/source.ts";
import { strip } from "../typescript/strip.ts";

const evaluate = eval;
Object.assign(globalThis, { strip });
provideTypeScript(() => "strip");

function wrapper(source: string): Promise<any> {
  const module = { exports: {} };
  return evaluate(prepareWrapper(source).code)(module, module.exports);
}

const WRAPPERS: [name: string, source: string][] = [
  ["export async function", "export async function wrapper(payload) { return payload }"],
  ["export function", "export function wrapper(payload) { return payload }"],
  ["export const", "export const wrapper = async (payload) => payload;"],
  ["export let", "export let wrapper = (payload) => payload"],
  ["export var", "export var wrapper = (payload) => payload"],
  ["export {}", "async function wrapper(payload) { return payload }\nexport { wrapper };"],
  ["export { as }", "const run = (payload) => payload;\nexport { run as wrapper }"],
  ["export { as default }", "const run = (payload) => payload;\nexport { run as default }"],
  ["export default, named", "export default async function run(payload) { return payload }"],
  ["export default, without a name", "export default async function (payload) { return payload }\n[1].at(0)"],
  ["export default of an arrow", "export default (payload) => payload"],
  ["export default in parentheses", "export default (((payload) => payload));"],
  ["export default behind a comment", "export /* the */ default // one\n(payload) => payload"],
  ["export default beside a wrapper", "export default 1;\nexport const wrapper = (payload) => payload;"],
  ["no export", "function wrapper(payload) { return payload }"],
  ["a class behind an export", "export class Api {}\nexport const wrapper = (payload) => payload"],
  [
    "a captured wrapper",
    [
      'export const DYNAMIC_HEADER_KEYS = ["api.example.com::authorization"];',
      "export async function wrapper(payload, options = {}) { return payload }",
      "if (typeof module !== 'undefined' && module.exports) { module.exports = { wrapper }; }",
    ].join("\n"),
  ],
  ["module.exports", "module.exports = { wrapper: (payload) => payload }"],
  ["exports", "exports.wrapper = (payload) => payload"],
  ["module.exports that is the function", "module.exports = async (payload) => payload"],
  ["a module of its own", "const module = 1, exports = 2;\nfunction wrapper(payload) { return payload }"],
  ["TypeScript", "export async function wrapper(payload: { a: number }): Promise<object> { return payload }"],
  ["a fence", "```js\nexport const wrapper = (payload) => payload\n```"],
];

for (const [name, source] of WRAPPERS) {
  Deno.test(`wrapper source: ${name}`, async () => {
    assert.deepStrictEqual(await (await wrapper(source))({ a: 1 }), { a: 1 });
  });
}

Deno.test("the word export in a string, a template, a regular expression or a comment stays", async () => {
  const source = [
    "// export const a = 1",
    "/* export default b */",
    "export const wrapper = () => ['export const x', `export function y`, /export async function/.source];",
  ].join("\n");
  const fn = await wrapper(source);
  assert.deepStrictEqual(fn(), ["export const x", "export function y", "export async function"]);
});

for (const [name, source] of [["nothing", ""], ["something else", "export const other = 1"]]) {
  Deno.test(`source without a wrapper: ${name}`, async () => {
    assert.notStrictEqual(typeof await wrapper(source), "function");
  });
}

Deno.test("an export from another module is rejected with its position", () => {
  for (const source of ["export * from 'm'", "export { wrapper } from 'm'"]) {
    assert.throws(() => prepareWrapper(`\n${source}`), (error: GuestSyntaxError) => {
      assert.deepStrictEqual(error.at, { line: 2, column: 1 });
      return true;
    });
  }
});

Deno.test("line numbers are preserved", () => {
  const program = prepareWrapper("export\nconst a = 1;\nexport {\n  a as b,\n};\nfoo()");
  const line = program.code.split("\n").findIndex((text) => text.includes("foo")) + 1;
  assert.strictEqual(line, 6);
  assert.deepStrictEqual(program.locate(6, 1), { line: 6, column: 1 });
  const first = prepareWrapper("export const a = foo()");
  assert.deepStrictEqual(first.locate(1, first.code.indexOf("foo") + 1), { line: 1, column: 18 });
});

const TRANSFORMS: [name: string, source: string, expected: unknown][] = [
  ["an arrow", "(data) => data.a", 1],
  ["an arrow with a semicolon and a comment", "(data) => data.a; // that", 1],
  ["a function without a name", "function (data) { return data.a }", 1],
  ["a function with a name", "async function pick(data) { return data.a }", 1],
  ["a function that follows", "(data) => pick(data); function pick(data) { return data.a }", 1],
  ["TypeScript", "(data: { a: number }): number => data.a", 1],
];

for (const [name, source, expected] of TRANSFORMS) {
  Deno.test(`transform source: ${name}`, async () => {
    const transform = await evaluate(prepareTransform(source).code)();
    assert.strictEqual(await transform({ a: 1 }), expected);
  });
}

Deno.test("a syntax error in a transform has the position in the author's source", () => {
  assert.throws(() => prepareTransform("(data) => ;"), (error: GuestSyntaxError) => {
    assert.deepStrictEqual(error.at, { line: 1, column: 11 });
    return true;
  });
});
