/**
 * What one would do without Hutch: quickjs-wasi as its README shows it, a new VM for every evaluation,
 * the WebAssembly compiled once. No jail, no limits, no host in another process.
 *
 * Reads one JSON order a line from stdin and answers each with one line on stdout.
 */

import { QuickJS } from "quickjs-wasi";
import wasm from "quickjs-wasi/quickjs.wasm" with { type: "bytes" };

interface Order {
  what: "evaluate" | "call" | "suspend" | "resume";
  count: number;
}

const module = await WebAssembly.compile(wasm);
const suspended: { vm: QuickJS; resume: () => void }[] = [];

/** Milliseconds of each evaluation of `1+1`, from nothing to its value. */
async function evaluate(count: number): Promise<number[]> {
  const times: number[] = [];
  for (let i = 0; i < count; i++) {
    const began = performance.now();
    using vm = await QuickJS.create({ wasm: module });
    using result = vm.evalCode("1+1");
    if (result.toNumber() !== 2) throw new Error("1+1 is not 2");
    times.push(performance.now() - began);
  }
  return times;
}

/** Milliseconds of `count` calls of an async host function, one after the other, in one VM. */
async function call(count: number): Promise<number> {
  using vm = await QuickJS.create({ wasm: module });
  let finish = () => {};
  const finished = new Promise<void>((resolve) => finish = resolve);
  using tool = vm.newFunction("tool", (...args) => {
    const input = JSON.parse(args[0].toString());
    const deferred = vm.newPromise();
    Promise.resolve(input.n + 1).then((n) => {
      deferred.resolve(vm.newString(JSON.stringify(n)));
      vm.executePendingJobs();
    });
    return deferred.handle;
  });
  using done = vm.newFunction("done", () => {
    finish();
    return vm.undefined;
  });
  vm.setProp(vm.global, "tool", tool);
  vm.setProp(vm.global, "done", done);
  const began = performance.now();
  vm.evalCode(`(async () => {
    for (let n = 0; n < ${count};) n = JSON.parse(await tool(JSON.stringify({ n })));
    done();
  })()`).dispose();
  vm.executePendingJobs();
  await finished;
  return performance.now() - began;
}

/** VMs that wait for a host function, and stay. */
async function suspend(count: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    const vm = await QuickJS.create({ wasm: module });
    let resume = () => {};
    using tool = vm.newFunction("tool", () => {
      const deferred = vm.newPromise();
      resume = () => {
        deferred.resolve(vm.newNumber(1));
        vm.executePendingJobs();
      };
      return deferred.handle;
    });
    vm.setProp(vm.global, "tool", tool);
    vm.evalCode("(async () => await tool({}))()").dispose();
    vm.executePendingJobs();
    suspended.push({ vm, resume: () => resume() });
  }
}

function resume(): number {
  const count = suspended.length;
  for (const each of suspended.splice(0)) each.resume();
  return count;
}

async function follow({ what, count }: Order): Promise<unknown> {
  if (what === "evaluate") return await evaluate(count);
  if (what === "call") return await call(count);
  if (what === "suspend") return await suspend(count);
  return resume();
}

let rest = "";
for await (const text of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + text).split("\n");
  rest = lines.pop()!;
  for (const line of lines) console.log(JSON.stringify(await follow(JSON.parse(line)) ?? null));
}
