/** The script runner: runs one toolscript as the module that it is, and says what became of it. */

import { clock } from "../clock.ts";
import { connect } from "../start.ts";
import { doneLine, type Execute, type HostMessage, isJson, startedLine, Wire } from "../wire.ts";
import { describe, type Shift } from "./failure.ts";

const { parse, stringify } = JSON;
const { exit, writeTextFileSync, mkdirSync } = Deno;
const { writeSync } = Deno.stderr;
const { apply } = Reflect;
const encoder = new TextEncoder();
const { encode } = encoder;

/** Where scripts are while they run; what is above it is nobody's business. */
const FOLDER = Deno.args[2];

/** What an execution's `code` says. */
interface Script {
  /** Text by path below the folder. */
  files: Record<string, string>;
  main: string;
  /** Whether its default export is what it returned. */
  returns: boolean;
  shift: Shift | null;
  args: string[];
}

/** How it ended: the exit code, and the JSON text of what it returned, if it did. */
interface Ending {
  exit: number;
  value?: string;
}

/** Loads a module in whatever way the import map says; not to be seen by the bundler. */
const load = (specifier: string): Promise<{ default?: unknown }> => import(specifier);

class Run {
  readonly #request: Execute;
  readonly #startedAt = clock();
  /** Whether the script's module has come to its end; what it began may still go on. */
  #loaded = false;
  #over = false;
  #script?: Script;

  constructor(request: Execute) {
    this.#request = request;
  }

  async start(): Promise<void> {
    wire.send(startedLine(this.#request.id));
    // A script that never yields must not keep this in.
    await wire.drained();
    try {
      const script: Script = this.#script = parse(this.#request.code);
      const module = await load(this.#place(script));
      const value = script.returns ? await module.default : undefined;
      this.#loaded = true;
      if (value !== undefined) this.#succeed(value);
    } catch (error) {
      this.fail(error);
    }
  }

  /** Writes the files, and one that gives up the permission to, and to read, before the script begins. */
  #place({ files, main, args }: Script): string {
    for (const path of Object.keys(files)) {
      const file = `${FOLDER}/${path}`;
      mkdirSync(file.slice(0, file.lastIndexOf("/")), { recursive: true });
      writeTextFileSync(file, files[path]);
    }
    Object.defineProperty(Deno, "args", { value: args });
    const renounce =
      'for (const name of ["read", "write"]) Deno.permissions.revokeSync({ name });\nexport {};\n';
    const url = (path: string) =>
      new URL(path.split("/").map(encodeURIComponent).join("/"), `file://${FOLDER}/`);
    writeTextFileSync(`${FOLDER}/.hutch-renounce.js`, renounce);
    const text = `import "./.hutch-renounce.js";\nexport * from ${stringify(url(main))};\n` +
      `import * as script from ${stringify(url(main))};\nexport default script.default;\n`;
    writeTextFileSync(`${FOLDER}/.hutch-main.js`, text);
    return `file://${FOLDER}/.hutch-main.js`;
  }

  /** Nothing is left to do, so a script that returned nothing has ended, unless we have not said so yet. */
  idle(event: Event): void {
    if (!this.#loaded || this.#over) return;
    event.preventDefault();
    this.finish({ exit: Deno.exitCode });
  }

  #succeed(value: unknown): void {
    const text = stringify(value);
    if (text === undefined) throw new TypeError("The value returned is not JSON");
    if (!isJson(text)) throw new TypeError("The value returned nests too deeply");
    this.finish({ exit: 0, value: text });
  }

  fail(error: unknown): void {
    if (this.#over) return;
    const { main = "", shift = null } = this.#script ?? {};
    complain(`error: Uncaught ${describe(error, { folder: FOLDER, main, shift })}\n`);
    this.finish({ exit: 1 });
  }

  timeOut(): void {
    this.#done(false, undefined, { code: "timeout", message: "Execution timed out" });
  }

  finish(ending: Ending): void {
    this.#done(true, stringify(ending));
  }

  #done(ok: boolean, result?: string, error?: { code: string; message: string }): void {
    if (this.#over) return;
    this.#over = true;
    const durationMs = Math.round((clock() - this.#startedAt) * 1000) / 1000;
    const line = { ok, result, error, logs: [], logsTruncated: false, durationMs };
    // From here on the host decides when this process ends.
    connection.ref();
    wire.send(doneLine(this.#request.id, line));
  }
}

function complain(text: string): void {
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
addEventListener("beforeunload", (event) => run?.idle(event));

function receive(message: HostMessage): void {
  if (message.type === "execute") {
    // What keeps this process from ending is the script, no longer the host's next word.
    connection.unref();
    run = new Run(message);
    run.start();
  } else if (message.type === "cancel") run?.timeOut();
}

/** Everything is slow the first time: have that behind us before a script comes. */
async function rehearse(): Promise<void> {
  const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL");
  await load("toolscript").catch(() => {});
  await load("data:application/typescript,export const rehearsal: number = 1;");
  await fetch(`${gateway}/health`).then((answer) => answer.text()).catch(() => {});
}

const connection = await connect();
const wire = new Wire(connection);
await rehearse();
wire.send('{"type":"ready"}\n');
await wire.listen(receive);
exit(0);
