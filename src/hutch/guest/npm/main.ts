/** Script of the npm runner: imports one package and runs its tools. */

import { echoLine } from "../process.ts";
import { Logs } from "../logs.ts";
import { bundleFolder, connect, dropSocketPermissions, replaceFlagAdvice } from "../bootstrap.ts";
import { formatStacks } from "../source/stack.ts";
import { settle } from "../tools.ts";
import { type HostMessage, Wire } from "../wire.ts";
import { captureConsole } from "./console.ts";
import { ToolError, toToolError } from "./errors.ts";
import { type Exports, load, loadZod4, type RunnerConfig } from "./load.ts";
import { blockNetwork, useProxy } from "./network/main.ts";
import { type Package, Run } from "./run.ts";
import { trapExits } from "./exit_traps.ts";

const { parse, stringify } = JSON;
const { exit, readTextFileSync } = Deno;
const evaluate = eval;

/** Limits for the output of the package before the first execution. */
const EARLY_LINES = 1_000;
const EARLY_CHARS = 64_000;

/** Reads the configuration from stdin until the host closes it. */
function readConfig(): RunnerConfig {
  const decoder = new TextDecoder(), buffer = new Uint8Array(65_536);
  let text = "";
  for (let count; (count = Deno.stdin.readSync(buffer)) !== null;) {
    text += decoder.decode(buffer.subarray(0, count), { stream: true });
  }
  return parse(text);
}

/** Replaces the environment that Deno was started with. */
function setEnvironment(env: Record<string, string>): void {
  for (const name of Object.keys(Deno.env.toObject())) Deno.env.delete(name);
  for (const name of Object.keys(env)) Deno.env.set(name, env[name]);
}

const config = readConfig();
setEnvironment(config.env);

let run: Run | undefined;
let imported = false;
/** Logs and the uncaught error from before the first execution. The first execution reports them. */
let earlyLogs: Logs | undefined = new Logs(EARLY_LINES, EARLY_CHARS);
let earlyError: ToolError | undefined;

const flush = captureConsole((line) => {
  if (run && !run.over) run.print(line);
  else if (earlyLogs?.add(line)) echoLine(earlyLogs.lines.at(-1)!);
});

/** Ends the execution with an uncaught error; during the import, stores it for the first execution. */
function report(error: unknown): void {
  const toolError = toToolError("execution_error", error, config.package);
  if (run && imported) run.fail(toolError);
  else earlyError ??= toolError;
}

trapExits(report);

/**
 * Returns true if the package handles the event itself. The package can do so only after it has loaded
 * `process`.
 */
function isHandled(event: "unhandledRejection" | "uncaughtException"): boolean {
  return (globalThis as any).process?.listenerCount?.(event) > 0;
}

addEventListener("unhandledrejection", (event) => {
  // Return without preventDefault, so that Deno passes the event to Node's handlers.
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
    run.start(earlyLogs?.lines ?? []);
    earlyLogs = undefined;
  } else if (message.type === "tool_result") {
    const { callId, ok, result = null, error } = message;
    settle(Number(callId), ok, stringify(ok ? result : error));
  } else if (message.type === "cancel" && message.id === run?.id) run.timeOut();
}

const wire = new Wire(await connect());
dropSocketPermissions();
replaceFlagAdvice("; the sandbox of tools does not allow it");
formatStacks();
wire.send('{"type":"ready"}\n');
const pkg: Package = {
  name: config.package,
  env: config.env,
  // Import the package after `ready` is written, because the package may never yield.
  exports: wire.drained().then(importPackage),
  zod: {
    zod4: () => loadZod4(config),
    // The converter is a separate script. In this bundle, it would add 2 to 3 ms to the 20 ms of each start.
    zod3: () => evaluate(readTextFileSync(`${bundleFolder}/zod3.js`)),
  },
  flush,
  takeEarlyError() {
    const error = earlyError;
    earlyError = undefined;
    return error;
  },
};
pkg.exports.catch(() => {});

/** Runs code that is slow on its first run, before an execution arrives. */
async function warmUp(): Promise<void> {
  const nullWire = new Wire({
    read: () => Promise.resolve(null),
    write: (bytes) => Promise.resolve(bytes.length),
  });
  const options = { timeoutMs: 1, memoryLimitBytes: 1, maxLogLines: 0, maxLogChars: 0 };
  const code = '{"op":"execute","name":"warm"}';
  const exports = Promise.resolve({ warm: { execute: () => ({}) } });
  const dummy: Package = { ...pkg, exports, takeEarlyError: () => undefined, flush() {} };
  await new Run(nullWire, { type: "execute", id: "", code, options, providers: [] }, dummy).start();
}

async function importPackage(): Promise<Exports> {
  try {
    if (config.proxy) useProxy(config.proxy);
    else blockNetwork(config.network ?? "");
    return await load(config);
  } finally {
    // Warm up only if no execution is waiting yet.
    if (!run) await warmUp();
    imported = true;
    wire.send('{"type":"imported"}\n');
  }
}

await wire.listen(receive);
exit(0);
