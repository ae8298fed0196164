/** Turns a package's attempts to end the process into an error. */

type Report = (error: Error) => void;

type Kill = (pid: number, signal?: unknown) => unknown;

interface Process {
  pid: number;
  kill: Kill;
  _kill: Kill;
  abort: () => void;
  /** Ends the process. It is the last function that `process.exit` calls. */
  reallyExit: (code?: number) => void;
}

/** Thrown by calls that would end the process, because such calls must not return. */
class ExitAttempt extends Error {}

/**
 * Calls `report` instead of ending the process.
 *
 * The functions of `process` are replaced when the global `process` is first read, because loading its module
 * takes 40 ms. Node modules that load this module themselves also read the global.
 */
export function trapExits(report: Report): void {
  const refuse = (call: string): never => {
    const error = new ExitAttempt(`The tool called ${call}. Return a value or throw an error instead`);
    report(error);
    throw error;
  };
  Deno.exit = (code = 0) => refuse(`Deno.exit(${code})`);
  globalThis.close = () => refuse("close()");
  // Read the original function only when it is called, because reading it takes 5 ms.
  const { get: realKill } = Object.getOwnPropertyDescriptor(Deno, "kill")!;
  const kill = trapKill("Deno.kill", (...args) => realKill!.call(Deno)(...args), () => Deno.pid, refuse);
  Object.defineProperty(Deno, "kill", { value: kill, writable: true, enumerable: true, configurable: true });
  onProcessLoaded((process) => {
    process.abort = () => refuse("process.abort()");
    process.reallyExit = (code) => refuse(`process.exit(${code || 0})`);
    for (const name of ["kill", "_kill"] as const) {
      process[name] = trapKill("process.kill", process[name].bind(process), () => process.pid, refuse);
    }
  });
}

function trapKill(name: string, kill: Kill, own: () => number, refuse: (call: string) => never): Kill {
  return (pid, signal = "SIGTERM") => {
    // Refuse 0 and negative numbers too, because they name process groups, possibly our own. Signal 0 is
    // harmless, because it only checks whether the process exists.
    if ((pid === own() || pid <= 0) && signal !== 0) refuse(`${name}(${pid}, ${JSON.stringify(signal)})`);
    return kill(pid, signal);
  };
}

function onProcessLoaded(trap: (process: Process) => void): void {
  const descriptor = Object.getOwnPropertyDescriptor(globalThis, "process")!;
  let trapped = false;
  const load = (): Process => {
    const process = descriptor.get!.call(globalThis);
    // Do nothing while the module of `process` is still loading, because `process` is incomplete until then.
    if (!trapped && typeof process?.abort === "function") {
      trapped = true;
      trap(process);
    }
    return process;
  };
  const get = () => {
    const process = load();
    if (trapped) Object.defineProperty(globalThis, "process", descriptor);
    else queueMicrotask(load);
    return process;
  };
  Object.defineProperty(globalThis, "process", { ...descriptor, get });
}
