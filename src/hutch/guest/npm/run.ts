/** One execution: resolves the tool, calls or describes it, and sends the outcome. */

import { exceeds, NotJsonSafe, tooLarge } from "../json.ts";
import { Logs } from "../logs.ts";
import { clock, runAfter } from "../clock.ts";
import { echoLine } from "../process.ts";
import {
  callTargets,
  doneLine,
  type Execute,
  type Failure,
  startedLine,
  toolCallLine,
  type Wire,
} from "../wire.ts";
import { Events, hostCalls } from "./events.ts";
import { errorResult, ToolError, toToolError } from "./errors.ts";
import { asIterator, collect, toOutput } from "./output.ts";
import { checkParams, type ParamsCheck } from "./params.ts";
import { listTools, resolve, type Tool } from "./resolve.ts";
import { inputSchema, type ZodConverters } from "./schema/main.ts";

const { parse, stringify } = JSON;
const { AbortController } = globalThis;

/** Content of an execution's `code`. */
interface Request {
  /** `import` only loads the package, `list` returns the names of its tools. */
  op: "execute" | "describe" | "list" | "import";
  /** Empty for `list`. */
  name: string;
  params?: Record<string, unknown>;
  stream?: boolean;
  /** Refuse parameters that do not match the tool's schema, and apply the defaults of the schema. */
  validate?: boolean;
}

/** Time for which the check of the parameters may continue after the tool has ended. */
const CHECK_MS = 100;
/** Provider through which the host checks parameters against a JSON Schema. */
const PARAMS = "params";

/** What all executions of a package share. */
export interface Package {
  name: string;
  env: Record<string, string>;
  exports: Promise<Record<string, unknown>>;
  zod: ZodConverters;
  /** Prints unfinished lines. */
  flush: () => void;
  /** Returns the uncaught error that occurred before this execution. Returns it only once. */
  takeEarlyError: () => ToolError | undefined;
}

export class Run {
  readonly #wire: Wire;
  readonly #request: Execute;
  readonly #package: Package;
  readonly #logs: Logs;
  readonly #startedAt = clock();
  readonly #abort = new AbortController();
  #events?: Events;
  /** The check of the parameters while it is running. */
  #checking?: Promise<void>;
  /** Findings of the check, as fields of the result. */
  #findings = "";
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

  /** `earlyLines` were printed before the first execution. */
  async start(earlyLines: readonly string[] = []): Promise<void> {
    const { id, code, inputs, options, providers } = this.#request;
    this.#wire.send(startedLine(id));
    // Write this message before the package runs, because the package may never yield.
    await this.#wire.drained();
    runAfter(options.timeoutMs, () => this.timeOut());
    try {
      const request: Request = { ...parse(code), params: inputs };
      if (request.stream) this.#events = new Events(providers, this.#emitter());
      for (const line of earlyLines) this.#addLog(line);
      const output = await this.#perform(request);
      this.#conclude(() => this.#succeed(output));
    } catch (error) {
      this.fail(error);
    }
  }

  #emitter() {
    const targets = callTargets(this.#request.providers);
    return (call: number, tool: number, input: string) => {
      if (!this.over) this.#wire.send(toolCallLine(this.id, String(call), targets[tool], input));
    };
  }

  async #perform({ op, name, params, stream, validate }: Request): Promise<string> {
    const { exports, env, name: packageName, takeEarlyError } = this.#package;
    const pkg = await exports;
    const earlyError = takeEarlyError();
    if (earlyError) throw earlyError;
    if (op === "import") return "null";
    if (op === "list") return stringify(listTools(pkg, packageName));
    const tool = await resolve(pkg, name, env, packageName);
    if (op === "describe") return await this.#describe(tool, name);
    if (validate) return await this.#call(tool, await this.#validated(tool, params ?? {}), stream);
    this.#startCheck(tool);
    return await this.#call(tool, params ?? {}, stream);
  }

  /** Checks a copy of the parameters while the tool runs. */
  #startCheck(tool: Tool): void {
    const params = parse(stringify(this.#request.inputs ?? {}));
    const check = checkParams(tool, params, this.#package.zod).then(
      (found) => this.#findings = findings(found),
      () => {},
    );
    this.#checking = check.then(() => this.#checking = undefined);
  }

  /** Returns the parameters as the tool's schema parses them. Throws ToolError if they do not match. */
  async #validated(tool: Tool, params: unknown): Promise<unknown> {
    let check = await checkParams(tool, params, this.#package.zod);
    if (!check) {
      this.#findings = ',"unchecked":true';
      return params;
    }
    if ("schema" in check) {
      const { check: checkOnHost } = hostCalls(PARAMS, this.#request.providers, this.#emitter());
      check = await checkOnHost(check.schema) as { problems: string[]; value?: unknown };
    }
    if (!check.problems.length) return check.value;
    this.#findings = findings(check);
    throw new ToolError("invalid_params", "The parameters do not match the tool's schema");
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
        `Tool "${name}" of ${this.#package.name} does not describe its parameters as JSON Schema`;
      throw new ToolError("schema_unavailable", message);
    }
    const description = typeof tool.description === "string" ? tool.description : "";
    return `{"name":${stringify(name)},"description":${stringify(description)},"inputSchema":${
      stringify(schema)
    }}`;
  }

  print(line: string): void {
    const { truncated } = this.#logs;
    const added = this.#addLog(line);
    if (added !== undefined) echoLine(added);
    if (this.#logs.truncated && !truncated) echoLine(null);
  }

  /** Returns the line as logged, possibly truncated, or undefined if it was dropped. */
  #addLog(line: string): string | undefined {
    const { lines } = this.#logs;
    const before = lines.length;
    this.#logs.add(line);
    const added = lines[before];
    if (added !== undefined) this.#events?.log(added);
    return added;
  }

  fail(error: unknown): void {
    this.#conclude(() => this.#fail(error));
  }

  /** Ends the execution once, after all events have arrived. */
  #conclude(end: () => void): void {
    if (this.#concluded) return;
    this.#concluded = true;
    this.#package.flush();
    const pending: Promise<unknown>[] = [];
    if (this.#events) pending.push(this.#events.settled());
    if (this.#checking) pending.push(Promise.race([this.#checking, elapsed(CHECK_MS)]));
    if (pending.length) Promise.all(pending).then(end);
    else end();
  }

  #succeed(output: string): void {
    const { maxResultBytes = Infinity } = this.#request.options;
    const result = (more: string) => `{"ok":true,"output":${stringify(output)}${more}}`;
    // Check the size of the result, because the output becomes longer when its quotes are escaped.
    if (exceeds(result(""), maxResultBytes)) this.#fail(tooLarge("The output", maxResultBytes));
    else this.#finish(this.#withFindings(result));
  }

  #fail(error: unknown): void {
    if (error instanceof NotJsonSafe) {
      this.#finish(undefined, { code: "result_too_large", message: error.message });
      return;
    }
    const toolError = toToolError("execution_error", error, this.#package.name);
    this.#finish(this.#withFindings((more) => errorResult(toolError, more)));
  }

  /** Adds the findings to a result, unless the result would become too large. */
  #withFindings(result: (more: string) => string): string {
    const { maxResultBytes = Infinity } = this.#request.options;
    const complete = result(this.#findings);
    return this.#findings && exceeds(complete, maxResultBytes) ? result("") : complete;
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

function findings(check: ParamsCheck | undefined): string {
  if (!check) return "";
  if ("schema" in check) return `,"schema":${stringify(check.schema)}`;
  return check.problems.length ? `,"problems":${stringify(check.problems)}` : "";
}

function elapsed(ms: number): Promise<void> {
  return new Promise((resolve) => runAfter(ms, resolve));
}
