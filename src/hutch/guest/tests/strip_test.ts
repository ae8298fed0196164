/** Tests of removing types. */

import assert from "node:assert";
import { originalColumn } from "../source/program.ts";
import { strip } from "../typescript/strip.ts";

const SOURCES = [
  "const a: Array<number> = [1]; mark(a as unknown);",
  "function f<T extends object>(this: Window, x: T, y?: string): asserts x is T { mark }",
  "class A<T> { private readonly x?: T; constructor(public y: number) { mark } }",
  "enum E {\n  A = 1,\n  B,\n}\nmark(E.A)",
  "type A = {\n  b: number;\n};\ninterface C extends A {\n  d: string;\n}\n\n  mark",
  "const a = <T,>(x: T): T => x; const b = a<Map<string, number[]>>(new Map()); mark",
  "declare const x: string;\nabstract class A { abstract m(): void }\nmark",
  "if (x satisfies string) { for (const y of z as string[]) { mark } }",
];

for (const source of SOURCES) {
  Deno.test(`removes the types of ${JSON.stringify(source)}`, () => {
    const { text, columns } = strip(source);
    const before = source.split("\n"), after = text.split("\n");
    assert.strictEqual(after.length, before.length);
    const line = after.findIndex((text) => text.includes("mark"));
    assert.strictEqual(line, before.findIndex((text) => text.includes("mark")));
    assert.strictEqual(
      originalColumn(columns(), line + 1, after[line].indexOf("mark") + 1),
      before[line].indexOf("mark") + 1,
    );
    new Function(`return async function () {\n${text}\n}`);
  });
}

Deno.test("invalid TypeScript throws a SyntaxError with its position, counted from 1", () => {
  assert.throws(() => strip("const a = 1;\nconst b: = 2;"), (error) => {
    const { line, column } = (error as { loc: { line: number; column: number } }).loc;
    assert.deepStrictEqual([error instanceof SyntaxError, line, column], [true, 2, 10]);
    return true;
  });
});

Deno.test("deep nesting throws instead of crashing", () => {
  for (const deep of ["(".repeat(50_000), "[".repeat(50_000), "!".repeat(200_000), "{".repeat(50_000)]) {
    assert.throws(() => strip(`const a: number = ${deep}`));
  }
});
