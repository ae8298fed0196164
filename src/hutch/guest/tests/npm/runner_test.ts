/** Tests of the npm runner as a process, without a jail. */

import assert from "node:assert";

const MAIN = new URL("../../npm/main.ts", import.meta.url).pathname;
const BUNDLE = new URL("../../dist", import.meta.url).pathname;
const OPTIONS = {
  timeoutMs: 20_000,
  memoryLimitBytes: 1,
  maxLogLines: 100,
  maxLogChars: 10_000,
  maxResultBytes: 100_000,
};
const EVENTS = {
  name: "events",
  types: "",
  tools: Object.fromEntries(
    ["log", "partial"].map((name) => [name, { safeName: name, originalName: name }]),
  ),
};

interface Options {
  env?: Record<string, string>;
  manifest?: object;
}

/** Fake host: a folder with the package `p`, a socket, and a runner that imports it. */
class Host {
  messages: any[] = [];
  /** Inputs of `events`, by the tool's name. */
  events: [string, string][] = [];
  #folder = Deno.makeTempDirSync({ prefix: "hutch-npm-#%41 " });
  #process!: Deno.ChildProcess;
  #lines!: AsyncGenerator<any>;
  #socket?: Deno.UnixConn;
  #ids = 0;

  static async run(
    source: string,
    test: (host: Host) => Promise<void>,
    options: Options = {},
  ): Promise<void> {
    const host = new Host();
    try {
      await host.#start(source, options);
      await test(host);
    } finally {
      await host.#end();
    }
  }

  async #start(source: string, { env = {}, manifest = { type: "module" } }: Options): Promise<void> {
    const tree = `${this.#folder}/tree`, pkg = `${tree}/node_modules/p`;
    Deno.mkdirSync(pkg, { recursive: true });
    Deno.writeTextFileSync(`${tree}/package.json`, '{"dependencies":{"p":"1.0.0"}}');
    Deno.writeTextFileSync(`${tree}/load.mjs`, 'export default () => import("p");');
    Deno.writeTextFileSync(
      `${pkg}/package.json`,
      JSON.stringify({ name: "p", version: "1.0.0", main: "index.js", ...manifest }),
    );
    Deno.writeTextFileSync(`${pkg}/index.js`, source);
    const path = `${this.#folder}/socket`;
    const listener = Deno.listen({ transport: "unix", path });
    const flags = ["--no-prompt", "--no-config", "--no-lock", "--no-check", "--cached-only"];
    const command = new Deno.Command(Deno.execPath(), {
      args: ["run", "-A", ...flags, "--node-modules-dir=manual", MAIN, `${BUNDLE}/npm.js`, path],
      stdin: "piped",
      stdout: "piped",
      stderr: "inherit",
    });
    this.#process = command.spawn();
    const writer = this.#process.stdin.getWriter();
    const config = { tree, package: "p", env, proxy: null, network: "There is none" };
    await writer.write(new TextEncoder().encode(JSON.stringify(config)));
    await writer.close();
    this.#socket = await listener.accept();
    listener.close();
    this.#lines = read(this.#socket);
    assert.deepStrictEqual(await this.next(), { type: "ready" });
  }

  async #end(): Promise<void> {
    this.#disconnect();
    await this.#process?.stdout.cancel().catch(() => {});
    await this.#process?.status;
    Deno.removeSync(this.#folder, { recursive: true });
  }

  #disconnect(): void {
    this.#socket?.close();
    this.#socket = undefined;
  }

  async next(): Promise<any> {
    const { value } = await this.#lines.next();
    this.messages.push(value);
    return value;
  }

  async send(message: object): Promise<void> {
    await this.#socket!.write(new TextEncoder().encode(`${JSON.stringify(message)}\n`));
  }

  async waitForImport(): Promise<void> {
    while ((await this.next()).type !== "imported");
  }

  /** Runs a tool and returns `done`. With `cancel`, cancels the execution as soon as it has started. */
  async done(name: string, { op = "execute", stream = false, params = {}, cancel = false, ...options } = {}) {
    const id = `run${++this.#ids}`;
    const code = JSON.stringify({ op, name, stream });
    const providers = stream ? [EVENTS] : [];
    const inputs = params;
    await this.send({ type: "execute", id, code, inputs, options: { ...OPTIONS, ...options }, providers });
    for (;;) {
      const message = await this.next();
      assert(message, "the runner is gone");
      if (message.type === "started" && cancel) await this.send({ type: "cancel", id });
      if (message.type === "tool_call") {
        this.events.push([message.safeToolName, message.input]);
        await this.send({ type: "tool_result", callId: message.callId, ok: true, result: null });
      }
      if (message.type === "done") return message;
    }
  }

  async output(name: string, more = {}): Promise<any> {
    const { result } = await this.done(name, more);
    assert(result?.ok, JSON.stringify(result));
    return JSON.parse(result.output);
  }

  async failure(name: string, more = {}): Promise<any> {
    const { result } = await this.done(name, more);
    assert.strictEqual(result?.ok, false);
    return result;
  }

  /** Ends the runner and returns its stdout. */
  async stdout(): Promise<string> {
    this.#disconnect();
    return new TextDecoder().decode((await this.#process.output()).stdout);
  }
}

async function* read(socket: Deno.UnixConn): AsyncGenerator<any> {
  let rest = "";
  try {
    for await (const text of socket.readable.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split("\n");
      rest = lines.pop()!;
      for (const line of lines) yield JSON.parse(line);
    }
  } catch (error) {
    if (!(error instanceof Deno.errors.BadResource || error instanceof Deno.errors.Interrupted)) throw error;
  }
}

function test(name: string, fn: () => Promise<void>): void {
  Deno.test({ name, fn, sanitizeOps: false, sanitizeResources: false });
}

test("a tool gets its parameters, the options and itself as `this`", () =>
  Host.run(
    `export const t = { mark: 1, execute(params, { abortSignal, messages, toolCallId }) {
       return { params, aborted: abortSignal.aborted, messages, id: typeof toolCallId, mark: this.mark };
     } };`,
    async (host) => {
      assert.deepStrictEqual(await host.output("t", { params: { a: [1] } }), {
        params: { a: [1] },
        aborted: false,
        messages: [],
        id: "string",
        mark: 1,
      });
      // The call may arrive before the import is done, but `done` must not.
      const [imported, done] = ["imported", "done"].map((type) =>
        host.messages.findIndex((message) => message.type === type)
      );
      assert.ok(0 < imported && imported < done, "one call after the other");
      assert.strictEqual((await host.output("t")).mark, 1);
    },
  ));

test("the environment is exactly the configured one, already at the import", () =>
  Host.run(
    `const atImport = { ...process.env };
     export const t = { execute: () => [atImport, { ...process.env }, Deno.env.toObject()] };`,
    async (host) => {
      const env = { KEY: "value", PATH: "/p", LD_PRELOAD: "l", NODE_OPTIONS: "--n", DENO_DIR: "/d" };
      assert.deepStrictEqual(await host.output("t"), [env, env, env]);
    },
    { env: { KEY: "value", PATH: "/p", LD_PRELOAD: "l", NODE_OPTIONS: "--n", DENO_DIR: "/d" } },
  ));

test("everything printed is in the logs and not in the output", () =>
  Host.run(
    `console.log("at import");
     export const t = { execute() {
       console.log("%s is", "log", { a: 1 });
       console.error("error"); console.warn("warn"); console.info("info"); console.debug("debug");
       console.group("group"); console.log("within"); console.groupEnd();
       console.assert(false, "assert"); console.count(); console.dir([1]); console.clear();
       console.table([{ x: 1 }]);
       process.stdout.write("one "); process.stdout.write("line\\nand half");
       process.stderr.write("stderr\\n");
       Deno.stdout.writeSync(new TextEncoder().encode(" of one"));
       return "out";
     } };`,
    async (host) => {
      const { result, logs } = await host.done("t");
      assert.deepStrictEqual(result, { ok: true, output: '"out"' });
      assert.match(logs[11], /^┌[^]*│ x │[^]*┘$/);
      assert.deepStrictEqual(logs.toSpliced(11, 1), [
        "at import",
        "log is { a: 1 }",
        "error",
        "warn",
        "info",
        "debug",
        "group",
        "  within",
        "Assertion failed: assert",
        "default: 1",
        "[ 1 ]",
        "one line",
        "stderr",
        "and half of one",
      ]);
      // A host that had to kill the process would read the logs from stdout.
      const echoed = (await host.stdout()).split("\n").filter((line) => line.startsWith("\x1e"));
      assert.deepStrictEqual(echoed.map((line) => JSON.parse(line.slice(1))), logs);
    },
  ));

test("logs are limited", () =>
  Host.run(
    `export const t = { execute() { for (let i = 0; i < 1000; i++) console.log("line " + i); } };`,
    async (host) => {
      const { logs, logsTruncated } = await host.done("t", { maxLogLines: 3 } as object);
      assert.deepStrictEqual([logs, logsTruncated], [["line 0", "line 1", "line 2"], true]);
      const echoed = (await host.stdout()).split("\n").filter((line) => line.startsWith("\x1e"));
      assert.deepStrictEqual(echoed.map((line) => JSON.parse(line.slice(1))), [...logs, null]);
    },
  ));

const EXITS: [call: string, message: string][] = [
  ["process.exit(0)", "process.exit(0)"],
  ["process.exit()", "process.exit(0)"],
  ["process.reallyExit(2)", "process.exit(2)"],
  ["(await import('node:process')).default.exit(3)", "process.exit(3)"],
  ["Deno.exit(4)", "Deno.exit(4)"],
  ["process.abort()", "process.abort()"],
  ["close()", "close()"],
  ["process.kill(process.pid, 'SIGKILL')", 'process.kill(PID, "SIGKILL")'],
  ["process.kill(0)", 'process.kill(0, "SIGTERM")'],
  ["Deno.kill(Deno.pid, 'SIGTERM')", 'Deno.kill(PID, "SIGTERM")'],
];

test("a tool that exits fails its execution and does not end the process", () =>
  Host.run(
    EXITS.map(([call], i) =>
      `export const t${i} = { async execute() { try { ${call} } catch {} return null; } };`
    )
      .join("\n") + `\nexport const asks = { execute: () => process.kill(process.pid, 0) };`,
    async (host) => {
      for (const [i, [, call]] of EXITS.entries()) {
        const { code, message } = await host.failure(`t${i}`);
        assert.strictEqual(code, "execution_error");
        assert.strictEqual(
          message.replace(/\(\d+, "/, '(PID, "'),
          `The tool called ${call}. Return a value or throw an error instead`.replace("(0, ", "(PID, "),
        );
      }
      assert.strictEqual(await host.output("asks"), true);
    },
  ));

test("an uncaught error ends the execution with its message", () =>
  Host.run(
    `const never = new Promise(() => {});
     export const rejects = { execute() { Promise.reject(new TypeError("loose")); return never; } };
     export const throws = { execute() { setTimeout(() => { throw new RangeError("later"); }); return never; } };
     export const handles = { async execute() {
       process.on("unhandledRejection", () => {});
       Promise.reject(new Error("handled"));
       await new Promise((resolve) => setTimeout(resolve, 1));
       return "fine";
     } };`,
    async (host) => {
      const failed = { ok: false, code: "execution_error" };
      assert.deepStrictEqual(await host.failure("rejects"), {
        ...failed,
        message: "loose",
        name: "TypeError",
        location: "index.js:2:58",
      });
      assert.deepStrictEqual(await host.failure("throws"), {
        ...failed,
        message: "later",
        name: "RangeError",
        location: "index.js:3:67",
      });
      assert.strictEqual(await host.output("handles"), "fine");
    },
  ));

test("an uncaught error during a successful import fails the first call", () =>
  Host.run(
    `Promise.reject(new Error("at import")); export const t = { execute: () => 1 };`,
    async (host) => {
      await host.waitForImport();
      assert.strictEqual((await host.failure("t")).message, "at import");
      assert.strictEqual(await host.output("t"), 1);
    },
  ));

const FAILED_IMPORTS: [source: string, message: RegExp][] = [
  ["throw new Error('top level')", /^p cannot be imported: top level$/],
  ["process.exit(1)", /^p cannot be imported: The tool called process\.exit\(1\)\. Return a value/],
  ["export const x = {;", /Unexpected token ';' at index\.js:1:19$/],
  ["import './none.js'", /ERR_MODULE_NOT_FOUND.*'none\.js'/],
  ["import 'nothere'", /ERR_MODULE_NOT_FOUND: index\.js imports nothere, which is not installed/],
];

for (const [source, message] of FAILED_IMPORTS) {
  test(`a failed import is reported without the host's paths: ${source}`, () =>
    Host.run(source, async (host) => {
      await host.waitForImport();
      for (const op of ["execute", "describe"]) {
        const failure = await host.failure("x", { op });
        assert.strictEqual(failure.code, "import_failed");
        assert.match(failure.message, message);
        assert(!failure.message.includes("hutch-npm-"), failure.message);
      }
    }));
}

test("CommonJS packages work", () =>
  Host.run(
    `const name = "t"; module.exports = { [name]: { execute: () => typeof require } };`,
    async (host) => assert.strictEqual(await host.output("t"), "function"),
    { manifest: {} },
  ));

test("values of generators and logs are streamed, and the package cannot see the events provider", () =>
  Host.run(
    `export const t = { async *execute() {
       for (let i = 0; i < 200; i++) yield i;
       console.log("done", typeof events);
     } };`,
    async (host) => {
      const all = Array.from({ length: 200 }, (_, i) => i);
      assert.deepStrictEqual(await host.output("t", { stream: true }), all);
      const expected = [...all.map((i) => ["partial", String(i)]), ["log", "done undefined"]];
      assert.deepStrictEqual(host.events, expected);
      assert.deepStrictEqual(await host.output("t"), all);
      assert.strictEqual(host.events.length, expected.length, "events without a stream");
    },
  ));

test("events arrive before `done`, also if the tool exits or throws", () =>
  Host.run(
    `export const exits = { execute() { console.log("last words"); process.exit(1); } };
     export const throws = { async *execute() { yield 1; throw new Error("no more"); } };`,
    async (host) => {
      await host.failure("exits", { stream: true });
      assert.strictEqual((await host.failure("throws", { stream: true })).message, "no more");
      assert.deepStrictEqual(host.events, [["log", "last words"], ["partial", "1"]]);
    },
  ));

test("cancellation and timeout abort the signal and are reported as timeouts", () =>
  Host.run(
    `let aborted = 0;
     const wait = (_, { abortSignal }) => new Promise((_, reject) => {
       const end = () => { aborted++; reject(new Error("aborted")); };
       // On a busy machine the timeout may come before the call.
       if (abortSignal.aborted) end(); else abortSignal.addEventListener("abort", end);
     });
     export const waits = { execute: wait };
     export const count = { execute: () => aborted };`,
    async (host) => {
      const error = { code: "timeout", message: "Execution timed out" };
      assert.deepStrictEqual((await host.done("waits", { cancel: true })).error, error);
      assert.deepStrictEqual((await host.done("waits", { timeoutMs: 30 } as object)).error, error);
      assert.strictEqual(await host.output("count"), 2);
    },
  ));

test("open handles do not delay the end of an execution", () =>
  Host.run(
    `import { createServer } from "node:net";
     export const t = { execute() {
       setInterval(() => {}, 1000);
       createServer().listen(0, "127.0.0.1");
       return "over";
     } };`,
    async (host) => assert.strictEqual(await host.output("t"), "over"),
  ));

test("an output over the limit is an error of the session, also if only its escaped quotes exceed it", () =>
  Host.run(
    `export const long = { execute: () => "x".repeat(200) };
     export const quotes = { execute: () => '"'.repeat(40) };`,
    async (host) => {
      for (const name of ["long", "quotes"]) {
        const { error } = await host.done(name, { maxResultBytes: 150 } as object);
        assert.strictEqual(error.code, "result_too_large");
      }
    },
  ));

test("describing a tool resolves its name like calling it", () =>
  Host.run(
    `export const t = () => ({ description: "What it does", execute() {},
       inputSchema: { jsonSchema: { type: "object" } } });
     export const silent = { execute() {} };`,
    async (host) => {
      assert.deepStrictEqual(await host.output("t", { op: "describe" }), {
        name: "t",
        description: "What it does",
        inputSchema: { type: "object" },
      });
      assert.strictEqual((await host.failure("silent", { op: "describe" })).code, "schema_unavailable");
      assert.strictEqual((await host.failure("none", { op: "describe" })).code, "tool_not_found");
    },
  ));

test("a package that replaces built-ins still returns its result", () =>
  Host.run(
    `export const t = { execute() {
       JSON.stringify = () => "{}"; JSON.parse = () => ({}); console.log = null;
       Array.prototype.push = Array.prototype.map = () => 0;
       TextEncoder.prototype.encode = () => new Uint8Array();
       globalThis.setTimeout = globalThis.queueMicrotask = globalThis.AbortController = undefined;
       return { kept: true };
     } };`,
    async (host) => assert.deepStrictEqual(await host.output("t"), { kept: true }),
  ));
