/** The deno runner's script: waits for one execution, runs it, and is done for. */

import { methods } from "../console.ts";
import { toJson } from "../json.ts";
import { Logs } from "../logs.ts";
import type { Prepared } from "../preparing/main.ts";
import { after, clock } from "../clock.ts";
import { echo } from "../process.ts";
import { FILE, GuestSyntaxError, type Position, Program } from "../program.ts";
import { connect, part, renounce } from "../start.ts";
import { explain, type Fault, lend, settle } from "../tools.ts";
import {
  doneLine,
  type Execute,
  type HostMessage,
  isJson,
  lendable,
  type Rehearse,
  startedLine,
  targets,
  toolCallLine,
  whatHas,
  Wire,
} from "../wire.ts";

const evaluate = eval;
const { parse, stringify } = JSON;
const { apply } = Reflect;
const { assign, hasOwn, keys } = Object;
const { replace } = String.prototype;
const { exec, test } = RegExp.prototype;
/** Deno's advice is for who starts it, which nobody does who could be told so. */
const FLAG_ADVICE = /, run again with the --allow-[a-z-]+ flag$/;
const NO_IMPORT = /--no-npm is specified|" not a dependency|Requires import access/;
const NO_FUNCTION = /^([\w$]+)\.([\w$]+) is not a function$/;
/** For how long nobody must want a process that has rehearsed before it loads what only some guests use. */
const IDLE_MS = 100;

const TIMED_OUT = { code: "timeout", message: "Execution timed out" };

class Run {
  readonly #wire: Wire;
  readonly #request: Execute;
  readonly #logs: Logs;
  readonly #startedAt = clock();
  #program?: Program;
  #over = false;

  constructor(wire: Wire, request: Execute) {
    this.#wire = wire;
    this.#request = request;
    this.#logs = new Logs(request.options.maxLogLines, request.options.maxLogChars);
  }

  async start(): Promise<void> {
    const { id, options, providers } = this.#request;
    this.#wire.send(startedLine(id));
    // A guest that never yields must not keep this in.
    await this.#wire.drained();
    this.#adoptConsole();
    const named = targets(providers);
    const emit = (call: number, tool: number, input: string) => {
      if (!this.#over) this.#wire.send(toolCallLine(id, String(call), named[tool], input));
    };
    lend(lendable(providers), emit, options.maxResultBytes);
    try {
      this.#program = programOf(this.#request);
      const fn = await functionOf(this.#program);
      this.#succeed(toJson(await fn(), "The result", options.maxResultBytes));
    } catch (error) {
      if (error instanceof GuestSyntaxError) {
        const { message, at } = error;
        this.#finish(false, undefined, { code: "runtime_error", message, name: "SyntaxError", ...at });
      } else this.fail(explain(error));
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

  #adoptConsole(): void {
    const { lines } = this.#logs;
    assign(
      console,
      methods((line) => {
        const before = lines.length, { truncated } = this.#logs;
        this.#logs.add(line);
        if (lines.length > before) echo(lines[before]);
        if (this.#logs.truncated && !truncated) echo(null);
      }, () => this.#logs.truncated),
    );
  }

  fail({ stack, ...error }: Fault): void {
    let { message } = error, at: Partial<Position> | undefined;
    try {
      // What else there is comes from the host, word for word.
      if (error.code === "runtime_error") message = this.#hinted(message);
      at = this.#program?.lineOf(stack);
    } catch {
      // The guest has replaced what that takes.
    }
    this.#finish(false, undefined, { ...error, message, ...at });
  }

  /** V8 and Deno say what does not work, and not what does. */
  #hinted(message: string): string {
    if (apply(test, NO_IMPORT, [message])) {
      const plain = apply(replace, message, [FLAG_ADVICE, ""]);
      return `${plain}; here only modules of node: and data: URLs can be imported`;
    }
    const [, name, tool] = apply(exec, NO_FUNCTION, [message]) ?? [];
    const { providers } = this.#request;
    for (let i = 0; name && i < providers.length; i++) {
      const { tools } = providers[i];
      if (providers[i].name === name && !hasOwn(tools, tool)) {
        return `${message}; ${whatHas(name, keys(tools))}`;
      }
    }
    return apply(replace, message, [FLAG_ADVICE, "; guests have no permissions, only tools"]);
  }

  #finish(ok: boolean, result?: string, error?: Fault): void {
    if (this.#over) return;
    this.#over = true;
    const { lines: logs, truncated: logsTruncated } = this.#logs;
    const durationMs = Math.round((clock() - this.#startedAt) * 1000) / 1000;
    // A guest that does not yield keeps the host's word from being heard.
    if (durationMs >= this.#request.options.timeoutMs) [ok, result, error] = [false, undefined, TIMED_OUT];
    this.#wire.send(doneLine(this.#request.id, { ok, result, error, logs, logsTruncated, durationMs }));
  }
}

/** As the host had it made elsewhere, else made here. */
function programOf({ code, job }: Execute): Program {
  if (job?.form === "program") return Program.of(parse(job.input));
  const prepared: (source: string, typeScript: () => string) => Prepared = evaluate(preparing());
  const made = prepared(code, typeScript);
  if ("program" in made) return Program.of(made.program);
  throw new GuestSyntaxError(made.reason, made.at);
}

/** What the program evaluates to, or has by default if it is TypeScript for Deno. */
async function functionOf({ code, refusal }: Program): Promise<() => unknown> {
  if (!refusal) return evaluate(`${code}\n//# sourceURL=${FILE}`);
  try {
    return (await import(URL.createObjectURL(new Blob([code], { type: "application/typescript" })))).default;
  } catch {
    throw new GuestSyntaxError(refusal.reason, refusal.at);
  }
}

let run: Run | undefined;

addEventListener("unhandledrejection", (event) => event.preventDefault());
addEventListener("error", (event) => {
  event.preventDefault();
  run?.fail(explain(event.error));
});

/** The host keeps the time, and cancels what has used up its own: an alarm here would take 0.5 ms to set. */
function receive(message: HostMessage | Rehearse): void {
  if (message.type === "execute") {
    run = new Run(wire, message);
    run.start();
  } else if (message.type === "rehearse") rehearse();
  else if (message.type === "tool_result") {
    settle(
      Number(message.callId),
      message.ok,
      stringify(message.ok ? message.result ?? null : message.error),
    );
  } else run?.timeOut();
}

/** What every execution does, from a line that is read to a line that is written. */
async function rehearse(): Promise<void> {
  const input = stringify({ code: "(async () => 1)", opening: 0, lines: 1, moved: [] });
  const options = { timeoutMs: 1, memoryLimitBytes: 1, maxLogLines: 0, maxLogChars: 0 };
  const job = { form: "program", input } as const;
  const execute = { type: "execute", id: "", code: "", options, providers: [], job } satisfies Execute;
  let line: Uint8Array | undefined = new TextEncoder().encode(`${stringify(execute)}\n`);
  const nowhere = new Wire({
    read(buffer) {
      const count = line?.length ?? null;
      if (line) buffer.set(line);
      line = undefined;
      return Promise.resolve(count);
    },
    write: (bytes) => Promise.resolve(bytes.length),
  });
  await nowhere.listen((message) => new Run(nowhere, message as Execute).start());
  after(IDLE_MS, () => {
    // Loads Node's timers, which many a guest uses.
    if (!run) setTimeout(() => {}, 0);
  });
}

const preparing = part("preparing.js"), typeScript = part("typescript.js");
const wire = new Wire(await connect());
renounce();
wire.send('{"type":"ready"}\n');
await wire.listen(receive);
Deno.exit(0);
