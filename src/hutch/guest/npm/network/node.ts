/** Detects when Node's modules are loaded, which takes 15 to 60 ms and is not needed by every package. */

const { defineProperty, getOwnPropertyDescriptor } = Object;
/** Node's HTTP client reads this global before each request. */
const BEFORE_REQUESTS = Symbol.for("Deno.internal.useEnvProxy");

/**
 * Calls `use` once with Node's `process`, when that module is loaded.
 *
 * Deno loads the module when the global `process` is first read. Other Node modules load it too, but read the
 * global before the module is available. In that case, `use` is called after these modules are loaded, or
 * before the first HTTP request.
 */
export function onProcess(use: (process: any) => void): void {
  const descriptor = getOwnPropertyDescriptor(globalThis, "process")!;
  let used = false;
  const load = () => {
    const process = descriptor.get!.call(globalThis);
    if (!used) {
      used = true;
      use(process);
    }
    return process;
  };
  const tryLoad = () => {
    try {
      load();
    } catch {
      // `process` is not available yet. Try again at the next HTTP request.
    }
  };
  const get = () => {
    try {
      return load();
    } finally {
      if (!used) queueMicrotask(tryLoad);
      // Restore the global, unless another hook has already done so.
      else if (getOwnPropertyDescriptor(globalThis, "process")?.get === get) {
        defineProperty(globalThis, "process", descriptor);
      }
    }
  };
  defineProperty(globalThis, "process", { ...descriptor, get });
  defineProperty(globalThis, BEFORE_REQUESTS, { get: tryLoad, configurable: true, enumerable: false });
}
