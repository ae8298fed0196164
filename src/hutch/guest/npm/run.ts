/** One execution: resolve the tool, call or describe it, and say how it went. */

import { exceeds, NotJsonSafe, tooLarge } from "../json.ts";
import { Logs } from "../logs.ts";
import { after, clock } from "../clock.ts";
import { echo } from "../process.ts";
import {
  doneLine,
  type Execute,
  type Failure,
  startedLine,
  targets,
  toolCallLine,
  type Wire,
} from "../wire.ts";
import { Events } from "./events.ts";
import { faultOf, faultText, ToolFault } from "./fault.ts";
import { asIterator, collect, toOutput } from "./output.ts";
import { resolve, type Tool } from "./resolve.ts";
import { type Converter, inputSchema } from "./schema.ts";

const { parse, stringify } = JSON;
const { AbortController } = globalThis;

/** What an execution's `code` says. */
interface Request {
  /** `import` loads the package and no more. */
  op: "execute" | "describe" | "import";
  name: string;
  params?: Record<string, unknown>;
  stream?: boolean;
}

/** What all executions of a package share. */
export interface Package {
  name: string;
  env: Record<string, string>;
  exports: Promise<Record<string, unknown>>;
  zod: () => Promise<Converter>;
  /** Prints the lines that have not ended yet. */
  flush: () => void;
  /** What went wrong after the import and before this execution. */
  spoiled: () => ToolFault | undefined;
}

export class Run {
  readonly #wire: Wire;
  readonly #request: Execute;
  readonly #package: Package;
  readonly #logs: Logs;
  readonly #startedAt = clock();
  readonly #abort = new AbortController();
  #events?: Events;
  #concluded = false;
  over = false;

  constructor(wire: Wire, request: Execute, pkg: Package) {
    this.#wire = wire;
    this.#request = request;
    this.#package = pkg;
    this.#logs = new Logs(request.options.maxLogLines, request.options.maxLogChars);
  }

  get id(): string {
    return this.#request.id;
  }

  /** `printed` was said before there was an execution that it could belong to. */
  async start(printed: readonly string[] = []): Promise<void> {
    const { id, code, options, providers } = this.#request;
    this.#wire.send(startedLine(id));
    // A package that never yields must not keep this in.
    await this.#wire.drained();
    after(options.timeoutMs, () => this.timeOut());
    try {
      const request: Request = parse(code);
      if (request.stream) this.#events = new Events(providers, this.#emitter());
      for (const line of printed) this.#keep(line);
      const output = await this.#perform(request);
      this.#conclude(() => this.#succeed(output));
    } catch (error) {
      this.fail(error);
    }
  }

  #emitter() {
    const named = targets(this.#request.providers);
    return (call: number, tool: number, input: string) => {
      if (!this.over) this.#wire.send(toolCallLine(this.id, String(call), named[tool], input));
    };
  }

  async #perform({ op, name, params, stream }: Request): Promise<string> {
    const { exports, env, name: packageName, spoiled } = this.#package;
    const pkg = await exports;
    const fault = spoiled();
    if (fault) throw fault;
    if (op === "import") return "null";
    const tool = await resolve(pkg, name, env, packageName);
    return op === "describe"
      ? await this.#describe(tool, name)
      : await this.#call(tool, params ?? {}, stream);
  }

  async #call(tool: Tool, params: unknown, stream?: boolean): Promise<string> {
    const options = { abortSignal: this.#abort.signal, messages: [], toolCallId: this.id };
    const value = await tool.execute(params, options);
    const { maxResultBytes } = this.#request.options;
    const values = asIterator(value);
    if (!values) return toOutput(value, maxResultBytes);
    return await collect(values, (json) => stream ? this.#events!.partial(json) : undefined, maxResultBytes);
  }

  async #describe(tool: Tool, name: string): Promise<string> {
    const schema = await inputSchema(tool, this.#package.zod);
    if (!schema) {
      const message =
        `Tool "${name}" of ${this.#package.name} says nothing of its parameters that is JSON Schema`;
      throw new ToolFault("schema_unavailable", message);
    }
    const description = typeof tool.description === "string" ? tool.description : "";
    return `{"name":${stringify(name)},"description":${stringify(description)},"inputSchema":${
      stringify(schema)
    }}`;
  }

  print(line: string): void {
    const { truncated } = this.#logs;
    const kept = this.#keep(line);
    if (kept !== undefined) echo(kept);
    if (this.#logs.truncated && !truncated) echo(null);
  }

  /** The line as it is kept; undefined when it is not. */
  #keep(line: string): string | undefined {
    const { lines } = this.#logs;
    const before = lines.length;
    this.#logs.add(line);
    const kept = lines[before];
    if (kept !== undefined) this.#events?.log(kept);
    return kept;
  }

  fail(error: unknown): void {
    this.#conclude(() => this.#fail(error));
  }

  /** The first to end it has the say, as soon as everything that was told has arrived. */
  #conclude(end: () => void): void {
    if (this.#concluded) return;
    this.#concluded = true;
    this.#package.flush();
    if (this.#events) this.#events.settled().then(end);
    else end();
  }

  #succeed(output: string): void {
    const { maxResultBytes = Infinity } = this.#request.options;
    const result = `{"ok":true,"output":${stringify(output)}}`;
    // Within a text its quotes take two bytes each.
    if (exceeds(result, maxResultBytes)) this.#fail(tooLarge("The output", maxResultBytes));
    else this.#finish(result);
  }

  #fail(error: unknown): void {
    if (error instanceof NotJsonSafe) {
      this.#finish(undefined, { code: "result_too_large", message: error.message });
    } else this.#finish(faultText(faultOf("execution_error", error)));
  }

  timeOut(): void {
    this.#finish(undefined, { code: "timeout", message: "Execution timed out" });
    this.#abort.abort();
  }

  #finish(result?: string, error?: Failure): void {
    if (this.over) return;
    this.#package.flush();
    this.#concluded = this.over = true;
    const { lines: logs, truncated: logsTruncated } = this.#logs;
    const durationMs = Math.round((clock() - this.#startedAt) * 1000) / 1000;
    this.#wire.send(doneLine(this.id, { ok: !error, result, error, logs, logsTruncated, durationMs }));
  }
}
