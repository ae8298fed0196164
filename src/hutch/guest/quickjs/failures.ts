/** Messages and positions of failed executions. */

import { interruptedLoop } from "../source/loops.ts";
import { availableTools, type Execute } from "../wire.ts";
import { type Run } from "./run.ts";
import { type Vm, VmError } from "./vm.ts";

/** Adds a hint: what the guest can use instead, or which engine can import modules. */
export function withHint(name: string, message: string): string {
  if (message === "fetch is not defined") return `${message}: guests have no network, only tools`;
  if (name !== "ReferenceError" || !message.startsWith("could not load module ")) return message;
  return `${message}: this engine has no modules; the deno engine has those of node:`;
}

/** Finds a call of an unknown tool on a line, because QuickJS does not name the function that is missing. */
export function unknownTool({ code, providers }: Execute, line = 0): string | undefined {
  const text = code.split("\n", line)[line - 1] ?? "";
  for (const { name, tools } of providers) {
    const calls = text.matchAll(
      new RegExp(`(?<![\\w$.])${name.replace(/[$.]/g, "\\$&")}\\.([\\w$]+)\\s*\\(`, "g"),
    );
    for (const [, tool] of calls) {
      if (Object.hasOwn(tools, tool)) continue;
      return `${name}.${tool} is not a function; ${availableTools(name, Object.keys(tools))}`;
    }
  }
}

/** Returns the stack of an interrupted guest; empty if the guest caught the interruption. */
export function interruptedAt({ vm, program }: Run): string {
  try {
    return program.cleanStack(program.atLoop(vm.stackOfException(), interruptedLoop));
  } catch {
    return "";
  }
}

/**
 * Returns QuickJS's syntax error for source that acorn accepted. Reading its properties here is safe, because
 * no guest code has run yet.
 */
export function syntaxError(vm: Vm, error: number): VmError {
  return Object.assign(new VmError(vm.toText(error)), { stack: vm.toText(vm.property(error, "stack")) });
}
