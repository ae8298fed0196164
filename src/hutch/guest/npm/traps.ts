/** The ways in which a package can end its own process, made into an error of its own. */

type Report = (message: string) => void;

type Kill = (pid: number, signal?: unknown) => unknown;

interface Process {
  pid: number;
  kill: Kill;
  _kill: Kill;
  abort: () => void;
  /** Which `exit` ends with. */
  reallyExit: (code?: number) => void;
}

/** What the call that was to end the process throws: it must not return. */
class Ended extends Error {}

/**
 * Has `report` hear of it instead of ending the process.
 *
 * Node's ends are replaced when something uses `process` for the first time, because that loads 40 ms
 * of Node; whatever loads it on its own comes by the global too.
 */
export function trapExits(report: Report): void {
  const refuse = (call: string): never => {
    const message = `The tool called ${call}`;
    report(message);
    throw new Ended(message);
  };
  Deno.exit = (code = 0) => refuse(`Deno.exit(${code})`);
  globalThis.close = () => refuse("close()");
  // To look at the real one takes 5 ms.
  const { get: realKill } = Object.getOwnPropertyDescriptor(Deno, "kill")!;
  const kill = trapKill("Deno.kill", (...args) => realKill!.call(Deno)(...args), () => Deno.pid, refuse);
  Object.defineProperty(Deno, "kill", { value: kill, writable: true, enumerable: true, configurable: true });
  watchProcess((process) => {
    process.abort = () => refuse("process.abort()");
    process.reallyExit = (code) => refuse(`process.exit(${code || 0})`);
    for (const name of ["kill", "_kill"] as const) {
      process[name] = trapKill("process.kill", process[name].bind(process), () => process.pid, refuse);
    }
  });
}

function trapKill(name: string, kill: Kill, own: () => number, refuse: (call: string) => never): Kill {
  return (pid, signal = "SIGTERM") => {
    // Zero and less are groups, ours among them. Signal 0 only asks whether a process is there.
    if ((pid === own() || pid <= 0) && signal !== 0) refuse(`${name}(${pid}, ${JSON.stringify(signal)})`);
    return kill(pid, signal);
  };
}

function watchProcess(trap: (process: Process) => void): void {
  const known = Object.getOwnPropertyDescriptor(globalThis, "process")!;
  let trapped = false;
  const touch = (): Process => {
    const process = known.get!.call(globalThis);
    // While it loads itself, it is not whole yet.
    if (!trapped && typeof process?.abort === "function") {
      trapped = true;
      trap(process);
    }
    return process;
  };
  const get = () => {
    const process = touch();
    if (trapped) Object.defineProperty(globalThis, "process", known);
    else queueMicrotask(touch);
    return process;
  };
  Object.defineProperty(globalThis, "process", { ...known, get });
}
