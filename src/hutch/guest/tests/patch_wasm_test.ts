/** Tests of the patched QuickJS. */

import assert from "node:assert";
import wasm from "quickjs-wasi/quickjs.wasm" with { type: "bytes" };
import { leb, patchWasm } from "../build/patch_wasm.ts";
import { buildImage } from "../build/image.ts";
import { Vm } from "../quickjs/vm.ts";

const module = new WebAssembly.Module(patchWasm(wasm));
const image = buildImage(module, "", "({ run: (f) => { f() } })", ["run"]);
const MEBIBYTE = 1 << 20;

async function run(vm: Vm, code: string): Promise<boolean> {
  vm.reset();
  vm.limit(8 * MEBIBYTE);
  return await vm.call(image.entry.run, [vm.evaluate(`(() => {${code}})`, "t.js")], () => false);
}

Deno.test("the patched module is valid WebAssembly, and an unknown module is rejected", () => {
  assert.ok(WebAssembly.validate(patchWasm(wasm)));
  assert.throws(() => patchWasm(patchWasm(wasm)), /not of the shape/);
});

Deno.test("LEB128 encoding follows the specification", () => {
  assert.deepStrictEqual(leb(0), [0]);
  assert.deepStrictEqual(leb(624485), [0xe5, 0x8e, 0x26]);
});

Deno.test("memory stops at the limit, which counts as a fault, and a reset releases it", async () => {
  const vm = new Vm(module, image, {});
  for (let round = 0; round < 3; round++) {
    assert.strictEqual(await run(vm, "const a = []; for (;;) a.push(new ArrayBuffer(100000));"), false);
    assert.ok(vm.faults > 0);
    assert.ok(vm.grown > 7 * MEBIBYTE && vm.grown <= 8 * MEBIBYTE, `${vm.grown}`);
    vm.reset();
    assert.strictEqual(vm.grown, 0);
    assert.strictEqual(vm.faults, 0);
  }
});

Deno.test("an out-of-memory error thrown by the guest does not count as a fault", async () => {
  const vm = new Vm(module, image, {});
  assert.strictEqual(await run(vm, 'throw new InternalError("out of memory")'), false);
  assert.strictEqual(vm.faults, 0);
});

Deno.test("a reset removes globals of the previous execution", async () => {
  const vm = new Vm(module, image, {});
  assert.ok(await run(vm, "globalThis.left = 1"));
  assert.ok(await run(vm, "if (typeof left !== 'undefined') throw 1"));
});

Deno.test("an endless loop is stopped at its deadline and does not block the event loop", async () => {
  const vm = new Vm(module, image, {});
  vm.reset();
  vm.limit(MEBIBYTE);
  let turns = 0;
  const ticking = setInterval(() => turns++, 1);
  const end = performance.now() + 10_000;
  const loop = vm.evaluate("(() => { for (;;); })", "t.js");
  const isOverdue = (now: number) => turns > 5 || now > end;
  assert.strictEqual(await vm.call(image.entry.run, [loop], isOverdue), false);
  clearInterval(ticking);
  assert.ok(turns > 5, `${turns}`);
});
