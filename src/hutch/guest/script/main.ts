/** Script of the script runner: runs one toolscript as a module and reports its outcome. */

import { clock } from "../clock.ts";
import { connect, replaceFlagAdvice } from "../bootstrap.ts";
import { doneLine, type Execute, type HostMessage, isJson, startedLine, Wire } from "../wire.ts";
import { formatStacks } from "../source/stack.ts";
import { cleanStack, formatError, type Shift } from "./failure.ts";

const { parse, stringify } = JSON;
const { exit, writeTextFileSync, mkdirSync } = Deno;
const { writeSync } = Deno.stderr;
const { apply } = Reflect;
const { includes, slice } = String.prototype;
const encoder = new TextEncoder();
const { encode } = encoder;

/** Folder for the files of the script. */
const FOLDER = Deno.args[2];

/** Content of an execution's `code`. */
interface Script {
  /** Text by path relative to the folder. */
  files: Record<string, string>;
  main: string;
  /** True if the default export is the value that the script returns. */
  returns: boolean;
  shift: Shift | null;
  /** Lines of the original script. */
  lineCount: number;
  args: string[];
}

/** Result of an execution. */
interface ScriptResult {
  /** Exit code. */
  exit: number;
  /** JSON text of the returned value. */
  value?: string;
  /** Text of the uncaught error, for the record of the run. */
  error?: string;
}

/** Maximum length of the error in the result. The output contains the whole error. */
const MAX_ERROR_CHARS = 8_000;

/** Names that scripts can use without an import. */
const GLOBALS = ["tools", "ToolError"];

/**
 * Imports a module that Deno finds with the import map at run time. The name is an argument here, so that the
 * bundler does not try to resolve it.
 */
const load = (specifier: string): Promise<Record<string, unknown>> => import(specifier);

class Run {
  readonly #request: Execute;
  readonly #startedAt = clock();
  /** True if the script's module is evaluated. Its timers and requests may still be pending. */
  #loaded = false;
  #over = false;

  constructor(request: Execute) {
    this.#request = request;
  }

  async start(): Promise<void> {
    wire.send(startedLine(this.#request.id));
    // Write this message before the script starts, because the script may never yield.
    await wire.drained();
    try {
      const script: Script = parse(this.#request.code);
      const { main, shift, lineCount } = script;
      formatStacks((stack) => cleanStack(stack, { folder: FOLDER, main, lineCount, shift }));
      const module = await load(this.#writeFiles(script));
      const value = script.returns ? await module.default : undefined;
      this.#loaded = true;
      if (value !== undefined) this.#succeed(value);
    } catch (error) {
      this.fail(error);
    }
  }

  /** Writes the files, and a main file that drops the permissions for files and imports the script. */
  #writeFiles({ files, main, args }: Script): string {
    for (const path of Object.keys(files)) {
      const file = `${FOLDER}/${path}`;
      mkdirSync(file.slice(0, file.lastIndexOf("/")), { recursive: true });
      writeTextFileSync(file, files[path]);
    }
    Object.defineProperty(Deno, "args", { value: args });
    const dropPermissions =
      'for (const name of ["read", "write"]) Deno.permissions.revokeSync({ name });\nexport {};\n';
    const url = (path: string) =>
      new URL(path.split("/").map(encodeURIComponent).join("/"), `file://${FOLDER}/`);
    writeTextFileSync(`${FOLDER}/.hutch-permissions.js`, dropPermissions);
    const text = `import "./.hutch-permissions.js";\nexport * from ${stringify(url(main))};\n` +
      `import * as script from ${stringify(url(main))};\nexport default script.default;\n`;
    writeTextFileSync(`${FOLDER}/.hutch-main.js`, text);
    return `file://${FOLDER}/.hutch-main.js`;
  }

  /** Called when the event loop is empty. Ends a script that returned no value. */
  finishIdle(event: Event): void {
    if (!this.#loaded || this.#over) return;
    event.preventDefault();
    this.finish({ exit: Deno.exitCode });
  }

  #succeed(value: unknown): void {
    const text = stringify(value);
    // A Map or Set has no JSON of its own, so its content would be lost without notice.
    if (apply(includes, text ?? "", ["{}"])) refuseCollections(value, "");
    if (text === undefined) throw new TypeError("The value returned is not JSON");
    if (!isJson(text)) throw new TypeError("The value returned nests too deeply");
    this.finish({ exit: 0, value: text });
  }

  fail(error: unknown): void {
    if (this.#over) return;
    const text = formatError(error);
    printError(`error: Uncaught ${text}\n`);
    this.finish({ exit: 1, error: apply(slice, text, [0, MAX_ERROR_CHARS]) });
  }

  timeOut(): void {
    this.#done(false, undefined, { code: "timeout", message: "Execution timed out" });
  }

  finish(result: ScriptResult): void {
    this.#done(true, stringify(result));
  }

  #done(ok: boolean, result?: string, error?: { code: string; message: string }): void {
    if (this.#over) return;
    this.#over = true;
    const durationMs = Math.round((clock() - this.#startedAt) * 1000) / 1000;
    const outcome = { ok, result, error, logs: [], logsTruncated: false, durationMs };
    // Keep the process alive until the host ends it.
    connection.ref();
    wire.send(doneLine(this.#request.id, outcome));
  }
}

/** Throws if a value contains a Map or a Set with items. */
function refuseCollections(value: unknown, path: string): void {
  if (typeof value !== "object" || value === null) return;
  if ((value instanceof Map || value instanceof Set) && value.size > 0) {
    const [name, instead] = value instanceof Map ? ["Map", "Object.fromEntries(map)"] : ["Set", "[...set]"];
    throw new TypeError(
      `The result has a ${name}${path && ` at ${path}`}, which is not JSON; use ${instead}`,
    );
  }
  // `JSON.stringify` has accepted the value, so it has no cycles.
  for (const [key, member] of Object.entries(value)) {
    refuseCollections(member, Array.isArray(value) ? `${path}[${key}]` : `${path}.${key}`);
  }
}

function printError(text: string): void {
  apply(writeSync, Deno.stderr, [apply(encode, encoder, [text])]);
}

let run: Run | undefined;

addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  run?.fail(event.reason);
});
addEventListener("error", (event) => {
  event.preventDefault();
  run?.fail(event.error ?? event.message);
});
addEventListener("beforeunload", (event) => run?.finishIdle(event));

function receive(message: HostMessage): void {
  if (message.type === "execute") {
    // The connection must not keep the event loop busy when the script has nothing left to do.
    connection.unref();
    run = new Run(message);
    run.start();
  } else if (message.type === "cancel") run?.timeOut();
}

/**
 * Defines the exports of the module "toolscript" as globals. If the module cannot be loaded, using one of
 * these globals throws.
 */
async function defineGlobals(): Promise<void> {
  let module: Record<string, unknown> | undefined, failure: unknown;
  try {
    module = await load("toolscript");
  } catch (error) {
    failure = error;
  }
  for (const name of GLOBALS) {
    const get = () => {
      throw failure;
    };
    const value = module ? { value: module[name], writable: true } : { get };
    Object.defineProperty(globalThis, name, { ...value, configurable: true });
  }
}

/** Runs code that is slow on its first run, before a script arrives. */
async function warmUp(): Promise<void> {
  const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL");
  await defineGlobals();
  await load("data:application/typescript,export const warm: number = 1;");
  await fetch(`${gateway}/health`).then((response) => response.text()).catch(() => {});
}

const connection = await connect();
const wire = new Wire(connection);
await warmUp();
replaceFlagAdvice("; scripts have no permissions, only tools");
wire.send('{"type":"ready"}\n');
await wire.listen(receive);
exit(0);
