/** Script of the deno runner: runs one execution. */

import { consoleMethods } from "../console.ts";
import { defineFiles, filesWritten, provideFiles } from "../files.ts";
import { toJson } from "../json.ts";
import { Logs } from "../logs.ts";
import type { PrecompileResult } from "../precompile/main.ts";
import { clock, runAfter } from "../clock.ts";
import { echoLine } from "../process.ts";
import { FILE, GuestSyntaxError, type Position, Program, type ProgramData } from "../source/program.ts";
import { connect, dropPermissions, openBundleFile, replaceFlagAdvice } from "../bootstrap.ts";
import { formatStacks } from "../source/stack.ts";
import {
  addItem,
  currentStack,
  defineInputs,
  defineProviders,
  describeError,
  type ErrorInfo,
  provideProxyCheck,
  settle,
} from "../tools.ts";
import {
  availableTools,
  callTargets,
  doneLine,
  type Execute,
  type HostMessage,
  isFileTarget,
  isJson,
  logLine,
  providerTools,
  startedLine,
  toolCallLine,
  type WarmUp,
  Wire,
} from "../wire.ts";

const evaluate = eval;
const { parse, stringify } = JSON;
const { apply } = Reflect;
const { assign, create, hasOwn, keys } = Object;
const { replace, slice } = String.prototype;
const { exec, test } = RegExp.prototype;
const NO_PERMISSIONS = "; guests have no permissions, only tools";
const NO_IMPORT = /--no-npm is specified|" not a dependency|Requires import access/;
const NO_FUNCTION = /^([\w$.]+)\.([\w$]+) is not a function$/;
/** The host truncates longer messages. */
const MAX_MESSAGE = 8_000;
/** Idle time after the warm-up before the runner loads modules that only some guests use. */
const IDLE_MS = 100;

const TIMED_OUT = { code: "timeout", message: "Execution timed out" };

class Run {
  readonly #wire: Wire;
  readonly #request: Execute;
  readonly #logs: Logs;
  readonly #startedAt = clock();
  #program?: Program;
  #over = false;

  /** Numbers of the tool calls whose results the guest has not received. */
  readonly openCalls: Record<number, true> = create(null);

  /** Milliseconds by which the host has extended the time limit. */
  extraMs = 0;

  constructor(wire: Wire, request: Execute) {
    this.#wire = wire;
    this.#request = request;
    this.#logs = new Logs(request.options.maxLogLines, request.options.maxLogChars);
  }

  async start(): Promise<void> {
    const { id, options, providers, inputs } = this.#request;
    this.#wire.send(startedLine(id));
    // Write this message before the guest starts, because the guest may never yield.
    await this.#wire.drained();
    this.#captureConsole();
    const targets = callTargets(providers, options.files);
    const emit = (call: number, tool: number, input: string, stack: string) => {
      if (this.#over) return;
      if (!isFileTarget(targets[tool])) this.openCalls[call] = true;
      this.#wire.send(toolCallLine(id, String(call), targets[tool], input, this.#lineOf(stack)));
    };
    const { maxResultBytes: maxInputBytes, sendCallLines, files } = options;
    const callStack = sendCallLines ? currentStack : undefined;
    if (files) defineFiles();
    const firstTool = defineProviders(providerTools(providers), emit, { maxInputBytes, callStack });
    const log = (line: string) => this.#log(line);
    if (files) provideFiles(files, { emit, firstTool, log, maxBytes: maxInputBytes ?? Infinity });
    if (inputs) defineInputs(inputs);
    try {
      const fn = await this.#compile();
      if (!fn) return;
      const result = toJson(await fn(), "The result", options.maxResultBytes);
      await filesWritten();
      this.#succeed(result);
    } catch (error) {
      await filesWritten();
      this.fail(describeError(error));
    }
  }

  #lineOf(stack: string): number | undefined {
    try {
      return stack ? this.#program?.locateStack(stack).line : undefined;
    } catch {
      // The guest has replaced a built-in, so the line is unknown.
      return undefined;
    }
  }

  /** Returns the guest's function, or undefined after a syntax error. */
  async #compile(): Promise<(() => unknown) | undefined> {
    try {
      const program = this.#program = programOf(this.#request);
      formatStacks((stack) => program.cleanStack(stack));
      return await functionOf(program);
    } catch (error) {
      if (!(error instanceof GuestSyntaxError)) throw error;
      const { message, at } = error;
      this.#finish(false, undefined, { code: "runtime_error", message, name: "SyntaxError", ...at });
      return undefined;
    }
  }

  #succeed(result: string | undefined): void {
    if (result === undefined || isJson(result)) return this.#finish(true, result);
    const message = "The result is not JSON, or nests too deeply";
    this.#finish(false, undefined, { code: "serialization_error", message });
  }

  timeOut(): void {
    this.#finish(false, undefined, TIMED_OUT);
  }

  #captureConsole(): void {
    assign(console, consoleMethods((line) => this.#log(line), () => this.#logs.truncated));
  }

  #log(line: string): void {
    const { lines } = this.#logs, { id, options: { streamLogs } } = this.#request;
    const before = lines.length, { truncated } = this.#logs;
    this.#logs.add(line);
    if (lines.length > before) {
      echoLine(lines[before]);
      if (streamLogs && !this.#over) this.#wire.send(logLine(id, lines[before]));
    }
    if (this.#logs.truncated && !truncated) echoLine(null);
  }

  fail({ stack, ...error }: ErrorInfo): void {
    let { message } = error, at: Partial<Position> | undefined, frames: string | undefined;
    try {
      message = apply(slice, message, [0, MAX_MESSAGE]);
      // Add no hint to other messages, because they come from the host.
      if (error.code === "runtime_error") message = this.#withHint(message);
      at = this.#program?.locateStack(stack);
      frames = this.#program?.describeStack(stack);
    } catch {
      // The guest has replaced a built-in. Report the error without a position.
    }
    this.#finish(false, undefined, { ...error, message, ...at, stack: frames });
  }

  /** Adds a hint about an alternative that the guest can use. */
  #withHint(message: string): string {
    if (apply(test, NO_IMPORT, [message])) {
      const plain = apply(replace, message, [NO_PERMISSIONS, ""]);
      return `${plain}; here only modules of node: and data: URLs can be imported`;
    }
    const [, name, tool] = apply(exec, NO_FUNCTION, [message]) ?? [];
    const { providers } = this.#request;
    for (let i = 0; name && i < providers.length; i++) {
      const { tools } = providers[i];
      if (providers[i].name === name && !hasOwn(tools, tool)) {
        return `${message}; ${availableTools(name, keys(tools))}`;
      }
    }
    return message;
  }

  #finish(ok: boolean, result?: string, error?: ErrorInfo): void {
    if (this.#over) return;
    this.#over = true;
    const { lines: logs, truncated: logsTruncated } = this.#logs;
    const durationMs = Math.round((clock() - this.#startedAt) * 1000) / 1000;
    // Check the timeout here, because the host's `cancel` is not received while the guest does not yield.
    if (durationMs >= this.#request.options.timeoutMs + this.extraMs) {
      [ok, result, error] = [false, undefined, TIMED_OUT];
    }
    const openCalls = keys(this.openCalls).length, { id } = this.#request;
    this.#wire.send(doneLine(id, { ok, result, error, logs, logsTruncated, durationMs, openCalls }));
  }
}

/** Returns the precompiled program if the host sent one. */
function programOf({ code, job }: Execute): Program {
  if (job?.form === "program") return Program.fromData(parse(job.input));
  const precompile: (source: string, readTypeScript: () => string) => PrecompileResult = evaluate(
    readPrecompile(),
  );
  const result = precompile(code, readTypeScript);
  if ("program" in result) return Program.fromData(result.program);
  throw new GuestSyntaxError(result.reason, result.at);
}

/** Evaluates the program, or imports it if it is a TypeScript module. */
async function functionOf({ code, sourceError }: Program): Promise<() => unknown> {
  if (!sourceError) return evaluate(`${code}\n//# sourceURL=${FILE}`);
  try {
    return (await import(URL.createObjectURL(new Blob([code], { type: "application/typescript" })))).default;
  } catch {
    throw new GuestSyntaxError(sourceError.reason, sourceError.at);
  }
}

let run: Run | undefined;

provideProxyCheck((Deno as any)[(Deno as any).internal].core.isProxy);
addEventListener("unhandledrejection", (event) => event.preventDefault());
addEventListener("error", (event) => {
  event.preventDefault();
  run?.fail(describeError(event.error));
});

/** The host enforces the timeout by `cancel`: setting a timer here would take 0.5 ms. */
function receive(message: HostMessage | WarmUp): void {
  if (message.type === "execute") {
    run = new Run(wire, message);
    run.start();
  } else if (message.type === "warm_up") warmUp();
  else if (message.type === "tool_result") {
    delete run?.openCalls[Number(message.callId)];
    settle(
      Number(message.callId),
      message.ok,
      stringify(message.ok ? message.result ?? null : message.error),
    );
  } else if (message.type === "tool_item") addItem(Number(message.callId), stringify(message.item ?? null));
  else if (message.type === "extend") run && (run.extraMs += message.ms);
  else run?.timeOut();
}

/**
 * Runs a complete dummy execution, including reading its `execute` and writing its `done`, because the first
 * execution of a process is slow.
 */
async function warmUp(): Promise<void> {
  const program = {
    code: "(async () => 1)",
    prefixLength: 0,
    lineCount: 1,
    insertions: [],
  } satisfies ProgramData;
  const input = stringify(program);
  const options = { timeoutMs: 1, memoryLimitBytes: 1, maxLogLines: 0, maxLogChars: 0 };
  const job = { form: "program", input } as const;
  const execute = { type: "execute", id: "", code: "", options, providers: [], job } satisfies Execute;
  let line: Uint8Array | undefined = new TextEncoder().encode(`${stringify(execute)}\n`);
  const nullWire = new Wire({
    read(buffer) {
      const count = line?.length ?? null;
      if (line) buffer.set(line);
      line = undefined;
      return Promise.resolve(count);
    },
    write: (bytes) => Promise.resolve(bytes.length),
  });
  await nullWire.listen((message) => new Run(nullWire, message as Execute).start());
  runAfter(IDLE_MS, () => {
    // Load Node's timers now, because many guests use them.
    if (!run) setTimeout(() => {}, 0);
  });
}

const readPrecompile = openBundleFile("precompile.js"), readTypeScript = openBundleFile("typescript.js");
const wire = new Wire(await connect());
dropPermissions();
replaceFlagAdvice(NO_PERMISSIONS);
wire.send('{"type":"ready"}\n');
await wire.listen(receive);
Deno.exit(0);
