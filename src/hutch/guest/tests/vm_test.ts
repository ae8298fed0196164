/** A reset leaves nothing of an execution behind. */

import assert from "node:assert";
import { type HostFunctions, type Image, Vm } from "../quickjs/vm.ts";

const dist = new URL("../dist/", import.meta.url);
const heaps = Deno.readFileSync(new URL("image.bin", dist));
const { plain } = JSON.parse(Deno.readTextFileSync(new URL("image.json", dist)));
const image: Image = { ...plain, heap: heaps.subarray(plain.from, plain.to) };
const module = new WebAssembly.Module(Deno.readFileSync(new URL("quickjs.wasm", dist)));
const functions: HostFunctions = Object.fromEntries(
  [..."cltkruedox"].map((name) => [name, (vm: Vm) => vm.undefined()]),
);

/** How far below the top of the C stack something is. */
function depth(vm: Vm): number {
  const stack = vm.capture().subarray(0, image.stackPointer);
  const lowest = stack.findIndex((byte) => byte !== 0);
  return lowest < 0 ? 0 : image.stackPointer - lowest;
}

const many = Array.from({ length: 3_000 }, (_, i) => `v${i} = ${i}`).join();
const SHAPES = {
  nothing: "1 + 1",
  calls: "(function f(n) { return n ? 1 + f(n - 1) : 0 })(900)",
  "as deep as it goes":
    "(() => { let n = 0; const f = () => { n++; f() }; try { f() } catch {} return n })()",
  "many variables": `(function f(n) { let ${many}; return n ? f(n - 1) : v2999 })(4)`,
  "many arguments":
    "(function f(n, ...all) { return n ? f(n - 1, ...all) : all.length })(6, ...Array(2_000).fill(0))",
  "nested data": "JSON.stringify(JSON.parse('['.repeat(400) + ']'.repeat(400))).length",
  "nested source": "eval('('.repeat(300) + 1 + ')'.repeat(300))",
  expression: "/^(a|b|ab)*c$/.test('ab'.repeat(8))",
  "sort in sort": "(function f(n) { return [3, 1, 2].sort((a, b) => (n && f(n - 1), a - b)) })(9).length",
  getters: "(() => { const o = { get x() { return this.n-- > 0 ? this.x : 1 }, n: 300 }; return o.x })()",
  proxies: "(() => { let o = {x: 1}; for (let i = 0; i < 90; i++) o = new Proxy(o, {}); return o.x })()",
};

Deno.test("a reset leaves nothing on the C stack, however deep an execution went", () => {
  const vm = new Vm(module, image, functions);
  vm.reset();
  vm.limit(32 << 20);
  assert.equal(depth(vm), 0);
  const depths: number[] = [];
  for (const [shape, code] of Object.entries(SHAPES)) {
    vm.evaluate(code, "shape.js");
    depths.push(depth(vm));
    vm.reset();
    vm.limit(32 << 20);
    assert.equal(depth(vm), 0, shape);
  }
  // Some stay above what is always cleared, some go as far as QuickJS lets them.
  console.log(depths);
  assert(Math.min(...depths) < 65_536 && Math.max(...depths) > 200_000, `${depths}`);
});
