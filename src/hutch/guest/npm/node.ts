/** Node's modules, once somebody has loaded them: that takes 15 to 60 ms, which not every package needs. */

const { defineProperty, getOwnPropertyDescriptor } = Object;
/** Read before each of Node's own HTTP requests. */
const BEFORE_REQUESTS = Symbol.for("Deno.internal.useEnvProxy");

/**
 * Calls `use` with `process` when that is looked at, or loaded by whatever else is loaded of Node.
 *
 * Deno loads it when the global is read for the first time. Other modules load it as well and read the global
 * while it is not there yet: then right after them, or before the first request if that comes sooner.
 */
export function onProcess(use: (process: any) => void): void {
  const known = getOwnPropertyDescriptor(globalThis, "process")!;
  let used = false;
  const look = () => {
    const process = known.get!.call(globalThis);
    if (!used) {
      used = true;
      use(process);
    }
    return process;
  };
  const lookAgain = () => {
    try {
      look();
    } catch {
      // Not there yet.
    }
  };
  const get = () => {
    try {
      return look();
    } finally {
      if (!used) queueMicrotask(lookAgain);
      // Unless somebody else looks out for it as well and has put it back already.
      else if (getOwnPropertyDescriptor(globalThis, "process")?.get === get) {
        defineProperty(globalThis, "process", known);
      }
    }
  };
  defineProperty(globalThis, "process", { ...known, get });
  defineProperty(globalThis, BEFORE_REQUESTS, { get: lookAgain, configurable: true, enumerable: false });
}
