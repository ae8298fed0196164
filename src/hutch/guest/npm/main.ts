/** The npm runner's script: imports one package in the environment that it is told, and runs its tools. */

import { echo } from "../process.ts";
import { Logs } from "../logs.ts";
import { connect, forgetSocket } from "../start.ts";
import { settle } from "../tools.ts";
import { type HostMessage, Wire } from "../wire.ts";
import { adoptConsole } from "./console.ts";
import { faultOf, ToolFault } from "./fault.ts";
import { type Exports, load, type Told, zodConverter } from "./load.ts";
import { noNetwork, useProxy } from "./network.ts";
import { type Package, Run } from "./run.ts";
import { trapExits } from "./traps.ts";

const { parse, stringify } = JSON;
const { exit } = Deno;

/** What a package may print before an execution is there to have its limits. */
const EARLY_LINES = 1_000;
const EARLY_CHARS = 64_000;

/** Everything on stdin, which the host closes. */
function readTold(): Told {
  const decoder = new TextDecoder(), buffer = new Uint8Array(65_536);
  let text = "";
  for (let count; (count = Deno.stdin.readSync(buffer)) !== null;) {
    text += decoder.decode(buffer.subarray(0, count), { stream: true });
  }
  return parse(text);
}

/** What Deno was started with is none of the package's business. */
function setEnvironment(env: Record<string, string>): void {
  for (const name of Object.keys(Deno.env.toObject())) Deno.env.delete(name);
  for (const name of Object.keys(env)) Deno.env.set(name, env[name]);
}

const told = readTold();
setEnvironment(told.env);

let run: Run | undefined;
let imported = false;
/** Until an execution is there, what is printed and what goes wrong waits for the first one. */
let early: Logs | undefined = new Logs(EARLY_LINES, EARLY_CHARS);
let spoiled: ToolFault | undefined;

const flush = adoptConsole((line) => {
  if (run && !run.over) run.print(line);
  else if (early?.add(line)) echo(early.lines.at(-1)!);
});

/** An error that nobody caught ends the execution; one of the import's only if that goes well otherwise. */
function report(error: unknown): void {
  const fault = faultOf("execution_error", error);
  if (run && imported) run.fail(fault);
  else spoiled ??= fault;
}

trapExits((message) => report(new ToolFault("execution_error", message)));

/** Whether the package has a handler of its own, as Node would ask; it has used `process` if so. */
function isHandled(event: "unhandledRejection" | "uncaughtException"): boolean {
  return (globalThis as any).process?.listenerCount?.(event) > 0;
}

addEventListener("unhandledrejection", (event) => {
  // Deno gives what nobody has prevented to Node's handlers.
  if (isHandled("unhandledRejection")) return;
  event.preventDefault();
  report(event.reason);
});
addEventListener("error", (event) => {
  event.preventDefault();
  if (!isHandled("uncaughtException")) report(event.error);
});

function receive(message: HostMessage): void {
  if (message.type === "execute") {
    run = new Run(wire, message, pkg);
    run.start(early?.lines ?? []);
    early = undefined;
  } else if (message.type === "tool_result") {
    const { callId, ok, result = null, error } = message;
    settle(Number(callId), ok, stringify(ok ? result : error));
  } else if (message.id === run?.id) run.timeOut();
}

const wire = new Wire(await connect());
forgetSocket();
wire.send('{"type":"ready"}\n');
const pkg: Package = {
  name: told.package,
  env: told.env,
  // The package may never yield again.
  exports: wire.drained().then(importPackage),
  zod: () => zodConverter(told),
  flush,
  spoiled() {
    const fault = spoiled;
    spoiled = undefined;
    return fault;
  },
};
pkg.exports.catch(() => {});

/** Everything is slow the first time: have that behind us before an execution comes. */
async function rehearse(): Promise<void> {
  const nowhere = new Wire({
    read: () => Promise.resolve(null),
    write: (bytes) => Promise.resolve(bytes.length),
  });
  const options = { timeoutMs: 1, memoryLimitBytes: 1, maxLogLines: 0, maxLogChars: 0 };
  const code = '{"op":"execute","name":"rehearsal"}';
  const exports = Promise.resolve({ rehearsal: { execute: () => ({}) } });
  const scene: Package = { ...pkg, exports, spoiled: () => undefined, flush() {} };
  await new Run(nowhere, { type: "execute", id: "", code, options, providers: [] }, scene).start();
}

async function importPackage(): Promise<Exports> {
  try {
    if (told.proxy) useProxy(told.proxy);
    else noNetwork(told.network ?? "");
    return await load(told);
  } finally {
    // Unless an execution is waiting already.
    if (!run) await rehearse();
    imported = true;
    wire.send('{"type":"imported"}\n');
  }
}

await wire.listen(receive);
exit(0);
