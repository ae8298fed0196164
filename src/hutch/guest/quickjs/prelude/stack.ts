/** Stack traces of errors, without the frames of the prelude. */

import { setName } from "./define.ts";
import { cleanStack } from "./host.ts";

/** Bit of `flags`. If it is set, the positions of calls are sent to the host. */
export const SEND_POSITIONS = 1;

const { defineProperty, getOwnPropertyDescriptor } = Object;
const { apply } = Reflect;
const { slice } = String.prototype;
const { captureStackTrace } = Error;
const { get, set } = getOwnPropertyDescriptor(Error.prototype, "stack")!;
/** Stack traces are cut, because a guest that formats them itself can make them arbitrarily long. */
const MAX_CHARS = 100_000;

function clean(stack: unknown): unknown {
  return typeof stack === "string" && stack ? cleanStack(apply(slice, stack, [0, MAX_CHARS])) : stack;
}

/** Reads the stack of an error, even if the guest has changed the error's class. */
export const rawStack = get!;

/**
 * Returns QuickJS's own stack of an error, without cleaning it. The runner only needs the line number in it,
 * which is the same in the program and in the guest's source.
 */
export function uncleanStack(error: Error): string | undefined {
  const stack = apply(rawStack, error, []);
  return typeof stack === "string" ? stack : undefined;
}

// Clean a stack only when it is read, because most errors are caught and their stacks are never read.
defineProperty(Error.prototype, "stack", {
  get: setName("get stack", function (this: unknown) {
    return clean(apply(get!, this, []));
  }),
  set,
  configurable: true,
});
defineProperty(Error, "captureStackTrace", {
  value: setName("captureStackTrace", function (target: object, ...options: unknown[]) {
    apply(captureStackTrace, Error, [target, ...options]);
    const own = getOwnPropertyDescriptor(target, "stack");
    if (own?.configurable) defineProperty(target, "stack", { ...own, value: clean(own.value) });
  }),
  writable: true,
  configurable: true,
});
