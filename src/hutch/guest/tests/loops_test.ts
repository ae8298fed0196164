/** Tests of finding the loop that was interrupted. */

import assert from "node:assert";
import { interruptedLoop } from "../source/loops.ts";

/** `@` marks the last position that QuickJS recorded, and `^` the loop that is expected. */
const CASES: [name: string, code: string, functionName?: string][] = [
  ["a loop after a call", "@f();\n^while (true) {}"],
  ["a loop after another loop", "for (;;) { g() }\n@f();\n^for (;;);"],
  ["a loop in a named function", "@\nfunction f() { ^for (;;); }\nfor (;;);", "f"],
  ["a loop in a method", "class A {\n@ m() { ^do {} while (1) }\n}", "m"],
  ["a loop in a getter", "const a = {\n@ get x() { ^for (;;); }\n}", "get x"],
  ["a loop in an arrow with a name", "@const f = () => { ^while (1) {} }", "f"],
  ["a loop in a function without a name", "[1]@.map(() => { ^while (1) {} })"],
  ["a position in a loop", "for (;;) { @f() }\nwhile (true) {}"],
  ["a function without loops", "function f() { @f() }\nwhile (true) {}", "f"],
  ["code that cannot be parsed", "@f(;\nfor (;;);"],
  ["an unknown function", "@f()\nfor (;;);", "unknown"],
];

for (const [name, marked, functionName] of CASES) {
  Deno.test(`the loop is found: ${name}`, () => {
    const offset = marked.replace("^", "").indexOf("@"), loop = marked.replace("@", "").indexOf("^");
    const code = marked.replace("@", "").replace("^", "");
    assert.equal(interruptedLoop(code, offset, functionName), loop < 0 ? undefined : loop);
  });
}

Deno.test("long code is not searched for loops", () => {
  assert.equal(interruptedLoop(`f();\nfor (;;);${" ".repeat(60_000)}`, 0), undefined);
});
