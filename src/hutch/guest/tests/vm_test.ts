/** Tests of resetting a VM. */

import assert from "node:assert";
import { Buffer } from "node:buffer";
import { type HostFunctions, type Image, Vm } from "../quickjs/vm.ts";

const dist = new URL("../dist/", import.meta.url);
const heaps = Deno.readFileSync(new URL("image.bin", dist));
const { plain } = JSON.parse(Deno.readTextFileSync(new URL("image.json", dist)));
const image: Image = { ...plain, heap: heaps.subarray(plain.from, plain.to) };
const module = new WebAssembly.Module(Deno.readFileSync(new URL("quickjs.wasm", dist)));
const functions: HostFunctions = Object.fromEntries(
  [..."cltkruedoxps"].map((name) => [name, (vm: Vm) => vm.undefined()]),
);
/** State of Math.random, which a reset chooses at random: 8 bytes of the context. */
const SEED_AT = image.context + 280;
const MEMORY_BYTES = 8 << 20;
/** Value that most programs keep on their stack and in their heap, so that leftovers are recognisable. */
const SECRET = 0x5eedfaceb00c;

function freshVm(): Vm {
  const vm = new Vm(module, image, functions);
  vm.reset();
  vm.limit(MEMORY_BYTES);
  return vm;
}

const base = freshVm().capture();

function isZero(bytes: Uint8Array): boolean {
  return Buffer.compare(bytes, new Uint8Array(bytes.length)) === 0;
}

/** Describes the first bytes of the memory that differ from those of an unused VM. Undefined if all are equal. */
function remainder(vm: Vm): string | undefined {
  const memory = vm.capture();
  memory.set(base.subarray(SEED_AT, SEED_AT + 8), SEED_AT);
  const common = memory.subarray(0, base.length), grown = memory.subarray(base.length);
  if (Buffer.compare(common, base) === 0 && isZero(grown)) return undefined;
  const at = memory.findIndex((byte, i) => byte !== (base[i] ?? 0));
  return `${memory.subarray(at, at + 16).toHex()} at ${at}, stack from ${image.stackPointer}`;
}

const list = (count: number, item: (i: number) => string | number) =>
  Array.from({ length: count }, (_, i) => item(i)).join();
const variables = list(3_000, (i) => `v${i} = ${SECRET}`);
/** Calls `inner` below a frame that reserves stack for `count` arguments, which it never writes. */
const below = (count: number, inner: string) =>
  `(function big(no, x) { if (no) big(${list(count, () => "x")}); return (${inner})(x) })(false, ${SECRET})`;
const keep = `(function keep(x, n = 20) { return n ? keep(x, n - 1) + x : x })`;

const PROGRAMS: Record<string, string> = {
  nothing: "1 + 1",
  calls: `(function f(n, x) { return n ? x + f(n - 1, x) : 0 })(900, ${SECRET})`,
  "as deep as it goes":
    `(() => { let n = 0; const f = (x) => { n++; f(x) }; try { f(${SECRET}) } catch {} return n })()`,
  "many variables": `(function f(n) { let ${variables}; return n ? f(n - 1) : v2999 })(4)`,
  "many arguments": `(function f(n, ...all) { return n ? f(n - 1, ...all) : all.length })(6, ...Array(2_000)
    .fill(${SECRET}))`,
  "applied arguments": `(function f() { return arguments.length })
    .apply(null, Array(20_000).fill(${SECRET}))`,
  "bound arguments": `Math.max.bind(null, ...Array(5_000).fill(${SECRET}))(1)`,
  "spread array": `[...Array(20_000).fill(${SECRET}), ...[1, 2].map((x) => x + ${SECRET})].length`,
  "nested data": "JSON.stringify(JSON.parse('['.repeat(400) + ']'.repeat(400))).length",
  "revived data": `JSON.parse(JSON.stringify(Array(50).fill({ a: ${SECRET} })), (k, v) => v)`,
  "nested source": "eval('('.repeat(300) + 1 + ')'.repeat(300))",
  "eval in eval": `(function f(n, x) { return n ? eval("f(n - 1, x) + x") : x })(9, ${SECRET})`,
  "new function": `new Function("x", "return x + ${SECRET}")(1)`,
  expression: "/^(a|b|ab)*c$/.test('ab'.repeat(8))",
  "expression with groups": `"${SECRET}".replace(/(\\d)(\\d)/g, (a, b, c) => c + b + ${SECRET})`,
  "nested expression": "new RegExp('('.repeat(200) + 'a' + ')'.repeat(200)).exec('a').length",
  "sort in sort": `(function f(n) {
    return [3, 1, 2].sort((a, b) => (n && f(n - 1), a - b + 0 * ${SECRET})) })(9).length`,
  getters:
    `(() => { const o = { get x() { return this.n-- > 0 ? this.x : ${SECRET} }, n: 300 }; return o.x })()`,
  proxies:
    `(() => { let o = {x: ${SECRET}}; for (let i = 0; i < 90; i++) o = new Proxy(o, {}); return o.x })()`,
  generators:
    `(() => { function* g(n) { yield ${SECRET}; if (n) yield* g(n - 1) } return [...g(60)].length })()`,
  "abandoned generator": `(() => { function* g() { const x = ${SECRET}; try { yield x } finally { yield x } }
    const i = g(); i.next(); return i.return(x => x).value })()`,
  async: `(async () => { const x = ${SECRET}; await null; return x })() && 1`,
  classes:
    `(() => { class A { #x = ${SECRET}; get x() { return this.#x } } return new (class extends A {})().x })()`,
  "typed arrays": `new Float64Array(100_000).fill(${SECRET}).sort().length`,
  "grown memory": `Array.from({ length: 30_000 }, (_, i) => "${SECRET}" + i).length`,
  "out of memory":
    `(() => { try { const a = []; for (;;) a.push("${SECRET}".repeat(5_000) + a.length) } catch {} })()`,
  bigints: `(${SECRET}n ** 500n).toString().length`,
  templates: `((s, ...v) => v.length)\`\${${SECRET}}\${1}\``,
  destructuring: `(({ a: [b, ...c], ...d }) => b)({ a: [${SECRET}, 2, 3], e: 4 })`,
  dates: `new Date(${SECRET}).toISOString()`,
  symbols: `({ [Symbol.toPrimitive]: () => ${SECRET} }) * 2`,
};
for (const count of [10_500, 12_000, 16_000, 20_000, 28_000]) {
  PROGRAMS[`${count} arguments of a call that is not made`] = below(count, keep);
}
PROGRAMS["frames that skip most of the stack"] = below(
  9_000,
  `(y) => ${below(9_000, `(z) => [3, 1, 2].sort((a, b) => a - b + z * 0 + y * 0)`).replace(/big/g, "other")}`,
);
PROGRAMS["an error below unused arguments"] = `(() => { try { ${
  below(14_000, "() => null.x")
} } catch (e) { return e.stack } })()`;

Deno.test("a reset restores every byte of the memory, whatever an execution did", () => {
  const vm = freshVm();
  assert.equal(remainder(vm), undefined);
  const deepest: number[] = [];
  for (const [name, code] of Object.entries(PROGRAMS)) {
    const result = vm.evaluate(code, "program.js");
    assert(!vm.isException(result), `${name}: ${vm.toText(vm.exception())}`);
    const used = vm.capture().subarray(0, image.stackPointer).findIndex((byte) => byte !== 0);
    deepest.push(used < 0 ? 0 : image.stackPointer - used);
    vm.reset();
    vm.limit(MEMORY_BYTES);
    assert.equal(remainder(vm), undefined, name);
  }
  assert(Math.min(...deepest) < 10_000 && Math.max(...deepest) > 200_000, `${deepest}`);
});

Deno.test("a reset restores every byte after a guest that was stopped in the middle", async () => {
  const endless = (body: string) => `(() => { const f = (x) => { ${body} }; f(${SECRET}) })`;
  const programs = {
    loop: endless("for (;;) x++"),
    "deep loop": endless(`(function g(n) { if (n) g(n - 1); else for (;;) x++ })(500)`),
    "below unused arguments": `(() => ${below(12_000, "(x) => { for (;;) x++ }")})`,
    sort: endless("Array(1_000).fill(x).sort(() => { for (;;); })"),
    expression: endless("/^(a+)+$/.test('a'.repeat(40) + 'b')"),
    generator: endless("for (const y of (function* () { for (;;) yield x })()) ;"),
    microtasks: endless("(async () => { for (;;) await x })()"),
  };
  const vm = freshVm();
  for (const [name, code] of Object.entries(programs)) {
    const fn = vm.evaluate(code, "program.js"), end = performance.now() + 20;
    const noTools = vm.string("{}"), maxBytes = vm.number(1_000);
    await vm.call(image.entry.run, [fn, noTools, maxBytes], () => performance.now() > end);
    vm.reset();
    vm.limit(MEMORY_BYTES);
    assert.equal(remainder(vm), undefined, name);
  }
});

Deno.test("a reset restores every byte after random programs", () => {
  let state = Deno.pid;
  const random = (count: number) => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31) % count;
  const pick = (items: string[]) => items[random(items.length)];
  const program = (depth: number): string => {
    const inner = depth ? program(depth - 1) : keep;
    return pick([
      `(x) => ${below(random(6_000), inner)}`,
      `(x) => [1, 2].map((y) => (${inner})(x))[0]`,
      `(x) => [3, 1, 2].sort((a, b) => ((${inner})(x), a - b))[0]`,
      `(x) => (function* () { yield (${inner})(x) })().next().value`,
      `(x) => JSON.parse("[1]", () => (${inner})(x))`,
      `(x) => "ab".replace(/b/, () => (${inner})(x))`,
      `(...x) => (${inner})(...x, ...Array(${random(3_000)}).fill(${SECRET}))`,
      `(x) => eval(${JSON.stringify(`(${inner})`)})(x)`,
    ]);
  };
  const vm = freshVm();
  for (let round = 0; round < 50; round++) {
    const code = `(${program(4)})(${SECRET})`;
    vm.evaluate(code, "program.js");
    vm.reset();
    vm.limit(MEMORY_BYTES);
    assert.equal(remainder(vm), undefined, `seed ${Deno.pid}, round ${round}: ${code.slice(0, 200)}`);
  }
});
