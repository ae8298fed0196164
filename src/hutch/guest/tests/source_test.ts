/** Tests of preparing guest source. */

import assert from "node:assert";
import { GuestSyntaxError, Program } from "../source/program.ts";
import { prepare, provideTypeScript } from "../source/source.ts";
import { strip } from "../typescript/strip.ts";

const evaluate = eval;
Object.assign(globalThis, { strip });
provideTypeScript(() => "strip");

function value(source: string): Promise<unknown> {
  return evaluate(prepare(source).code)();
}

const FORMS: [name: string, source: string, expected: unknown][] = [
  ["an expression", "1 + 1", 2],
  ["an expression with a semicolon", "1 + 1;", 2],
  ["an expression followed by a comment", "1 + 1 // two", 2],
  ["an expression in parentheses", "({ a: 1 }).a", 1],
  ["statements that end in an expression", "const x = 4; x * 2", 8],
  ["a body with return and await", "const x = await 3; return x", 3],
  ["one named function", "async function main() { return 7 }", 7],
  ["one arrow", "async () => 8", 8],
  ["one function expression", "(function () { return 9 })", 9],
  ["a fence", "```js\nconst a = 1;\na + 1\n```", 2],
  ["nothing", "", undefined],
  ["a block", "{ a: 1 }", undefined],
  ["a string that could be a directive", '"hello"', "hello"],
  ["TypeScript", "interface A { x: number }\nconst a: A = { x: 1 } as A;\nreturn a.x!", 1],
  ["an enum", "enum E { A = 5 }\nE.A", 5],
];

for (const [name, source, expected] of FORMS) {
  Deno.test(`the value of ${name}`, async () => assert.deepStrictEqual(await value(source), expected));
}

Deno.test("a function that is not the only statement is not called", async () => {
  assert.strictEqual(await value("function f() { return 1 }\nconst x = 2"), undefined);
});

Deno.test("a static import becomes a dynamic one with the same number of lines", async () => {
  assert.strictEqual(await value('import {\n  join as j,\n} from "node:path";\nj("a", "b")'), "a/b");
  assert.strictEqual(prepare('import {\n  join,\n} from "node:path";\njoin.x').code.split("\n").length, 5);
});

Deno.test("an export is rejected with a remedy and its position", () => {
  assert.throws(() => prepare("const a = 1;\nexport default a"), (error: GuestSyntaxError) => {
    assert.match(error.message, /use `return`.*\(2:1\)/);
    return true;
  });
});

Deno.test("a syntax error has a line and a column, counted from 1", () => {
  assert.throws(() => prepare("let a = 1;\nlet b = ;"), (error: GuestSyntaxError) => {
    assert.deepStrictEqual(error.at, { line: 2, column: 9 });
    return true;
  });
});

Deno.test("an error in TypeScript has its own position, not that of the first type", () => {
  assert.throws(() => prepare("const x: number = 1;\nlet y: string = ;"), (error: GuestSyntaxError) => {
    assert.strictEqual(error.at?.line, 2);
    return true;
  });
});

Deno.test("a namespace with values is rejected instead of dropped", () => {
  assert.throws(
    () => prepare("const a: number = 1;\nnamespace N { export const x = 1 }\nN.x"),
    /namespace.*\(2:1\)/,
  );
  prepare("declare namespace N { const x: number }\nconst a: number = 1");
});

Deno.test("a position after inserted text is mapped to the author's source", () => {
  const program = prepare("let a = 1;\n  a.b.c");
  const line = program.code.split("\n")[1];
  assert.deepStrictEqual(program.locate(2, line.indexOf("a.b") + 1), { line: 2, column: 3 });
});

Deno.test("a position on the first line does not count the wrapper", () => {
  const program = prepare("foo()");
  assert.deepStrictEqual(program.locate(1, program.code.indexOf("foo") + 1), { line: 1, column: 1 });
});

Deno.test("a program restored from JSON maps positions in the same way", () => {
  const sources: [source: string, what: string][] = [
    ["let a = 1;\n  a.b.c", "a.b"],
    ['import x from "y"; const a: number = 1; x.z;\n/* c */ x.y as any', "x.z"],
    ['import x from "y"; const a: number = 1; x.z;\n/* c */ x.y as any', "x.y"],
  ];
  for (const [source, what] of sources) {
    const restored = Program.fromData(JSON.parse(JSON.stringify(prepare(source).data())));
    const positionOf = (text: string) => {
      const before = text.slice(0, text.indexOf(what)).split("\n");
      return [before.length, before.at(-1)!.length + 1] as const;
    };
    const [line, column] = positionOf(source);
    assert.deepStrictEqual(restored.locate(...positionOf(restored.code)), { line, column });
    assert.notDeepStrictEqual(positionOf(restored.code), positionOf(source));
  }
});

Deno.test("preparing many imports and many types takes linear time", () => {
  const started = performance.now();
  const program = prepare('import"a";\n'.repeat(50_000));
  assert.strictEqual(program.data().insertions.length, 50_000);
  assert.deepStrictEqual(program.locate(50_000, 19), { line: 50_000, column: 11 });
  const numbers = prepare(`const a: number[] = [${"1, ".repeat(100_000)}];`).data();
  assert(JSON.stringify(numbers.columns).length < 1000);
  assert(performance.now() - started < 20_000);
});

Deno.test("source that closes the surrounding function is rejected", () => {
  assert.throws(() => prepare("1 })(); (async () => { 2"), GuestSyntaxError);
});
