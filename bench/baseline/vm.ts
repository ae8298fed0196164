/**
 * Baseline without Hutch: quickjs-wasi used as in its README, with a new VM for every evaluation. The
 * WebAssembly is compiled once. No jail, no limits, no separate host process.
 *
 * Reads one JSON request per line from stdin and answers each with one line on stdout.
 */

import { QuickJS } from "quickjs-wasi";
import wasm from "quickjs-wasi/quickjs.wasm" with { type: "bytes" };

interface Request {
  action: "evaluate" | "call" | "suspend" | "resume";
  count: number;
}

const module = await WebAssembly.compile(wasm);
const suspended: { vm: QuickJS; resume: () => void }[] = [];

/** Returns the milliseconds of each evaluation of `1+1`, including the creation of the VM. */
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

/** Returns the milliseconds of `count` sequential calls of an async host function in one VM. */
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

/** Creates `count` VMs, each of which waits for a host function. */
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
  for (const vm of suspended.splice(0)) vm.resume();
  return count;
}

async function handle({ action, count }: Request): Promise<unknown> {
  if (action === "evaluate") return await evaluate(count);
  if (action === "call") return await call(count);
  if (action === "suspend") return await suspend(count);
  return resume();
}

let rest = "";
for await (const text of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + text).split("\n");
  rest = lines.pop()!;
  for (const line of lines) console.log(JSON.stringify(await handle(JSON.parse(line)) ?? null));
}
