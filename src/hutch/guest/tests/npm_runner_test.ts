/** The npm runner as a process, though not in a jail: what it is told, what it says, and what cannot end it. */

import assert from "node:assert";

const MAIN = new URL("../npm/main.ts", import.meta.url).pathname;
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

interface Told {
  env?: Record<string, string>;
  manifest?: object;
}

/** The host's side: a folder with the package `p`, a socket, and a runner that imports it. */
class Host {
  messages: any[] = [];
  /** Inputs of `events`, by the tool's name. */
  events: [string, string][] = [];
  #folder = Deno.makeTempDirSync({ prefix: "hutch-npm-#%41 " });
  #process!: Deno.ChildProcess;
  #lines!: AsyncGenerator<any>;
  #socket?: Deno.UnixConn;
  #ids = 0;

  static async run(source: string, scene: (host: Host) => Promise<void>, told: Told = {}): Promise<void> {
    const host = new Host();
    try {
      await host.#start(source, told);
      await scene(host);
    } finally {
      await host.#end();
    }
  }

  async #start(source: string, { env = {}, manifest = { type: "module" } }: Told): Promise<void> {
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
      args: ["run", "-A", ...flags, "--node-modules-dir=manual", MAIN, "./npm.js", path],
      stdin: "piped",
      stdout: "piped",
      stderr: "inherit",
    });
    this.#process = command.spawn();
    const writer = this.#process.stdin.getWriter();
    const all = { tree, package: "p", env, proxy: null, network: "There is none" };
    await writer.write(new TextEncoder().encode(JSON.stringify(all)));
    await writer.close();
    this.#socket = await listener.accept();
    listener.close();
    this.#lines = read(this.#socket);
    assert.deepStrictEqual(await this.next(), { type: "ready" });
  }

  async #end(): Promise<void> {
    this.#hangUp();
    await this.#process?.stdout.cancel().catch(() => {});
    await this.#process?.status;
    Deno.removeSync(this.#folder, { recursive: true });
  }

  #hangUp(): void {
    this.#socket?.close();
    this.#socket = undefined;
  }

  async next(): Promise<any> {
    const { value } = await this.#lines.next();
    this.messages.push(value);
    return value;
  }

  async say(message: object): Promise<void> {
    await this.#socket!.write(new TextEncoder().encode(`${JSON.stringify(message)}\n`));
  }

  async imported(): Promise<void> {
    while ((await this.next()).type !== "imported");
  }

  /** What `done` says; `cancel` says so as soon as the execution has started. */
  async done(name: string, { op = "execute", stream = false, params = {}, cancel = false, ...options } = {}) {
    const id = `run${++this.#ids}`;
    const code = JSON.stringify({ op, name, params, stream });
    const providers = stream ? [EVENTS] : [];
    await this.say({ type: "execute", id, code, options: { ...OPTIONS, ...options }, providers });
    for (;;) {
      const message = await this.next();
      assert(message, "the runner is gone");
      if (message.type === "started" && cancel) await this.say({ type: "cancel", id });
      if (message.type === "tool_call") {
        this.events.push([message.safeToolName, message.input]);
        await this.say({ type: "tool_result", callId: message.callId, ok: true, result: null });
      }
      if (message.type === "done") return message;
    }
  }

  async output(name: string, more = {}): Promise<any> {
    const { result } = await this.done(name, more);
    assert(result?.ok, JSON.stringify(result));
    return JSON.parse(result.output);
  }

  async fault(name: string, more = {}): Promise<any> {
    const { result } = await this.done(name, more);
    assert.strictEqual(result?.ok, false);
    return result;
  }

  /** Ends it, for what it printed besides what it said to the host. */
  async printed(): Promise<string> {
    this.#hangUp();
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

function test(name: string, scene: () => Promise<void>): void {
  Deno.test({ name, fn: scene, sanitizeOps: false, sanitizeResources: false });
}

test("a tool gets its parameters, the second argument and itself", () =>
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
      // The call may have come before the import was done; its end may not.
      const [imported, done] = ["imported", "done"].map((type) =>
        host.messages.findIndex((message) => message.type === type)
      );
      assert.ok(0 < imported && imported < done, "one call after the other");
      assert.strictEqual((await host.output("t")).mark, 1);
    },
  ));

test("the environment is the one that was told, before the package is imported, and nothing else", () =>
  Host.run(
    `const atImport = { ...process.env };
     export const t = { execute: () => [atImport, { ...process.env }, Deno.env.toObject()] };`,
    async (host) => {
      const env = { KEY: "value", PATH: "/p", LD_PRELOAD: "l", NODE_OPTIONS: "--n", DENO_DIR: "/d" };
      assert.deepStrictEqual(await host.output("t"), [env, env, env]);
    },
    { env: { KEY: "value", PATH: "/p", LD_PRELOAD: "l", NODE_OPTIONS: "--n", DENO_DIR: "/d" } },
  ));

test("whatever is printed is in the logs, and never in the output", () =>
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
      // A host that had to kill this process would have it from here.
      const echoed = (await host.printed()).split("\n").filter((line) => line.startsWith("\x1e"));
      assert.deepStrictEqual(echoed.map((line) => JSON.parse(line.slice(1))), logs);
    },
  ));

test("logs keep their limits", () =>
  Host.run(
    `export const t = { execute() { for (let i = 0; i < 1000; i++) console.log("line " + i); } };`,
    async (host) => {
      const { logs, logsTruncated } = await host.done("t", { maxLogLines: 3 } as object);
      assert.deepStrictEqual([logs, logsTruncated], [["line 0", "line 1", "line 2"], true]);
      const echoed = (await host.printed()).split("\n").filter((line) => line.startsWith("\x1e"));
      assert.deepStrictEqual(echoed.map((line) => JSON.parse(line.slice(1))), [...logs, null]);
    },
  ));

const ENDS: [call: string, message: string][] = [
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

test("a tool cannot end its process: it ends its execution, as a failure", () =>
  Host.run(
    ENDS.map(([call], i) =>
      `export const t${i} = { async execute() { try { ${call} } catch {} return null; } };`
    )
      .join("\n") + `\nexport const asks = { execute: () => process.kill(process.pid, 0) };`,
    async (host) => {
      for (const [i, [, call]] of ENDS.entries()) {
        const { code, message } = await host.fault(`t${i}`);
        assert.strictEqual(code, "execution_error");
        assert.strictEqual(
          message.replace(/\(\d+, "/, '(PID, "'),
          `The tool called ${call}`.replace("(0, ", "(PID, "),
        );
      }
      assert.strictEqual(await host.output("asks"), true);
    },
  ));

test("an error that nobody catches ends the execution with its message", () =>
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
      assert.deepStrictEqual(await host.fault("rejects"), { ...failed, message: "loose", name: "TypeError" });
      assert.deepStrictEqual(await host.fault("throws"), { ...failed, message: "later", name: "RangeError" });
      assert.strictEqual(await host.output("handles"), "fine");
    },
  ));

test("what nobody catches at the import is the first call's error, if the import went well", () =>
  Host.run(
    `Promise.reject(new Error("at import")); export const t = { execute: () => 1 };`,
    async (host) => {
      await host.imported();
      assert.strictEqual((await host.fault("t")).message, "at import");
      assert.strictEqual(await host.output("t"), 1);
    },
  ));

const IMPORTS: [source: string, message: RegExp][] = [
  ["throw new Error('top level')", /^p cannot be imported: top level$/],
  ["process.exit(1)", /^p cannot be imported: The tool called process\.exit\(1\)$/],
  ["export const x = {;", /Unexpected token ';' at node_modules\/p\/index\.js:1:19$/],
  ["import './none.js'", /ERR_MODULE_NOT_FOUND.*'node_modules\/p\/none\.js'/],
  ["import 'nothere'", /ERR_MODULE_NOT_FOUND.*'nothere'/],
];

for (const [source, message] of IMPORTS) {
  test(`an import that fails says why, without the host's paths: ${source}`, () =>
    Host.run(source, async (host) => {
      await host.imported();
      for (const op of ["execute", "describe"]) {
        const fault = await host.fault("x", { op });
        assert.strictEqual(fault.code, "import_failed");
        assert.match(fault.message, message);
        assert(!fault.message.includes("hutch-npm-"), fault.message);
      }
    }));
}

test("CommonJS packages work", () =>
  Host.run(
    `const name = "t"; module.exports = { [name]: { execute: () => typeof require } };`,
    async (host) => assert.strictEqual(await host.output("t"), "function"),
    { manifest: {} },
  ));

test("generators stream their values and the logs, and the package sees nothing of it", () =>
  Host.run(
    `export const t = { async *execute() {
       for (let i = 0; i < 200; i++) yield i;
       console.log("done", typeof events);
     } };`,
    async (host) => {
      const all = Array.from({ length: 200 }, (_, i) => i);
      assert.deepStrictEqual(await host.output("t", { stream: true }), all);
      const told = [...all.map((i) => ["partial", String(i)]), ["log", "done undefined"]];
      assert.deepStrictEqual(host.events, told);
      assert.deepStrictEqual(await host.output("t"), all);
      assert.strictEqual(host.events.length, told.length, "nothing is told that nobody asked for");
    },
  ));

test("what a stream was told arrives before the end, also of a tool that exits or throws", () =>
  Host.run(
    `export const exits = { execute() { console.log("last words"); process.exit(1); } };
     export const throws = { async *execute() { yield 1; throw new Error("no more"); } };`,
    async (host) => {
      await host.fault("exits", { stream: true });
      assert.strictEqual((await host.fault("throws", { stream: true })).message, "no more");
      assert.deepStrictEqual(host.events, [["log", "last words"], ["partial", "1"]]);
    },
  ));

test("a cancelled execution and one out of time abort the signal and are timeouts", () =>
  Host.run(
    `let aborted = 0;
     const wait = (_, { abortSignal }) => new Promise((_, reject) => {
       const end = () => { aborted++; reject(new Error("aborted")); };
       // On a busy machine the end may come before the beginning.
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

test("open handles do not keep an execution from its end", () =>
  Host.run(
    `import { createServer } from "node:net";
     export const t = { execute() {
       setInterval(() => {}, 1000);
       createServer().listen(0, "127.0.0.1");
       return "over";
     } };`,
    async (host) => assert.strictEqual(await host.output("t"), "over"),
  ));

test("an output over the limit is the session's error, also for the quotes around quotes", () =>
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

test("a tool is described as it is called: by its resolution", () =>
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
      assert.strictEqual((await host.fault("silent", { op: "describe" })).code, "schema_unavailable");
      assert.strictEqual((await host.fault("none", { op: "describe" })).code, "tool_not_found");
    },
  ));

test("a package that replaces what everybody uses still gets its answer out", () =>
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
