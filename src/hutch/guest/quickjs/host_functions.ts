/** The functions of the runner that the prelude inside a VM can call, each under one letter. */

import { decodeText, encodingOf, urlParts } from "./platform.ts";
import type { Run } from "./run.ts";
import type { HostFunctions, Vm } from "./vm.ts";

/** For each prelude, the letters of the host functions that it uses and the names of its own functions. */
export const PRELUDES = {
  plain: {
    functions: "cltkruedoxpsb",
    entries: ["run", "turn", "variables", "settle", "item", "fire", "stack"],
  },
  web: { functions: "cltkruedoxpsbh", entries: ["run", "settle", "item", "fire", "stack", "job"] },
};

/** The parts of the runner that these functions use. */
export interface RunnerHooks {
  toolCall(run: Run, number: number, tool: number, input: string, stack?: string): void;
  log(run: Run, line: string): boolean;
  startTimer(run: Run, id: number, delay: number, repeat: boolean): void;
  stopTimer(run: Run, id: number): void;
  succeed(run: Run, result: string | undefined): void;
  report(run: Run, error: Record<string, unknown> | null): void;
  timeOut(run: Run): void;
  digest(run: Run, number: number, algorithm: string, bytes: Uint8Array<ArrayBuffer>): void;
}

/** `run` returns the execution in a VM. */
export function hostFunctions(run: (vm: Vm) => Run, runner: RunnerHooks): HostFunctions {
  return {
    c: (vm, [number, tool, input, stack]) => {
      const caller = run(vm), at = caller.request.options.sendCallLines ? vm.toText(stack) : undefined;
      runner.toolCall(caller, vm.toNumber(number), vm.toNumber(tool), vm.toText(input), at);
      return vm.undefined();
    },
    l: (vm, [line]) => vm.number(runner.log(run(vm), vm.toText(line)) ? 1 : 0),
    t: (vm, [id, delay, repeat]) => {
      runner.startTimer(run(vm), vm.toNumber(id), vm.toNumber(delay), vm.toNumber(repeat) === 1);
      return vm.undefined();
    },
    k: (vm, [id]) => {
      runner.stopTimer(run(vm), vm.toNumber(id));
      return vm.undefined();
    },
    r: (vm, [length]) => vm.arrayBuffer(crypto.getRandomValues(new Uint8Array(vm.toNumber(length)))),
    u: (vm, [operation, href, argument]) =>
      vm.string(urlParts(vm.toText(operation), vm.toText(href), vm.toText(argument))),
    e: (vm, [text]) => vm.arrayBuffer(new TextEncoder().encode(vm.toText(text))),
    d: (vm, [bytes, label, mode]) => {
      const flags = vm.toNumber(mode), name = vm.toText(label);
      return vm.string(flags < 0 ? encodingOf(name) : decodeText(vm.toBytes(bytes), name, flags));
    },
    o: (vm, args) => {
      // Check the deadline here too, because long-running built-ins do not call the interrupt hook.
      if (run(vm).isOverdue(performance.now())) runner.timeOut(run(vm));
      else runner.succeed(run(vm), args.length && !vm.isUndefined(args[0]) ? vm.toText(args[0]) : undefined);
      return vm.undefined();
    },
    x: (vm, [failure]) => {
      if (run(vm).isOverdue(performance.now())) runner.timeOut(run(vm));
      else runner.report(run(vm), JSON.parse(vm.toText(failure)));
      return vm.undefined();
    },
    b: (vm, [text]) => vm.number(vm.byteLength(text)),
    p: (vm, [value]) => vm.number(vm.isProxy(value) ? 1 : 0),
    s: (vm, [stack]) => vm.string(run(vm).program.cleanStack(vm.toText(stack))),
    h: (vm, [call, algorithm, bytes]) => {
      runner.digest(run(vm), vm.toNumber(call), vm.toText(algorithm), vm.toBytes(bytes).slice());
      return vm.undefined();
    },
  };
}
