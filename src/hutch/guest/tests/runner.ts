/** Runs executions with the quickjs runner in this process, on the built bundle. */

import { WakeupFile } from "../quickjs/wakeup.ts";
import { Runner } from "../quickjs/runner.ts";
import { Wire } from "../wire.ts";

const dist = new URL("../dist/", import.meta.url);
const heaps = Deno.readFileSync(new URL("image.bin", dist));
const images = JSON.parse(Deno.readTextFileSync(new URL("image.json", dist)));
for (const image of Object.values<any>(images)) image.heap = heaps.subarray(image.from, image.to);
const module = new WebAssembly.Module(Deno.readFileSync(new URL("quickjs.wasm", dist)));

/** Fake host: returns the result of a call of `send`, `read` or `drop`. */
export type FakeHost = (tool: string, input: any) => unknown;

const OPTIONS = { timeoutMs: 5_000, memoryLimitBytes: 32 << 20, maxLogLines: 100, maxLogChars: 10_000 };
const TOOLS = Object.fromEntries(
  ["send", "read", "drop"].map((name) => [name, { safeName: name, originalName: name }]),
);

/** Creates a runner that passes its messages to `receive`. */
export function createRunner(receive: (message: any) => void): Runner {
  const wire = new Wire({
    read: () => Promise.resolve(null),
    write: (bytes) => Promise.resolve(bytes.length),
    writeSync: (bytes) => {
      for (const line of new TextDecoder().decode(bytes).split("\n").slice(0, -1)) receive(JSON.parse(line));
      return bytes.length;
    },
  });
  return new Runner(wire, module, images, new WakeupFile(() => null));
}

export function executeMessage(code: string, extra: object = {}): any {
  const providers = [{ name: "upstream", tools: TOOLS, types: "" }];
  return { type: "execute", id: "1", code, options: OPTIONS, providers, ...extra };
}

/** Runs one execution and returns its `done`. */
export async function execute(code: string, job?: object, host: FakeHost = () => null): Promise<any> {
  const { promise, resolve } = Promise.withResolvers<any>();
  const runner = createRunner((message) => {
    if (message.type === "done") resolve(message);
    if (message.type !== "tool_call") return;
    Promise.resolve(host(message.safeToolName, message.input)).then(
      (result) => runner.receive({ type: "tool_result", callId: message.callId, ok: true, result }),
      (error) => runner.receive({ type: "tool_result", callId: message.callId, ok: false, error }),
    );
  });
  runner.receive(executeMessage(code, { job }));
  return await promise;
}

/** Defines a test that may leave the timer of a deadline running. */
export function test(name: string, fn: () => Promise<void>): void {
  Deno.test({ name, fn, sanitizeOps: false, sanitizeResources: false });
}

/** Evaluates an expression or a body with `return` inside a wrapper; throws its error. */
export async function evaluateInWrapper(body: string, host?: FakeHost): Promise<any> {
  const inner = body.includes("return ") ? body : `return (${body})`;
  const code =
    `export async function wrapper(payload) { return Response.json(await (async () => {${inner}})() ?? null) }`;
  const done = await execute(code, { form: "wrapper", input: '{"payload":{},"options":{}}' }, host);
  if (!done.ok) throw Object.assign(new Error(done.error.message), { name: done.error.name });
  return JSON.parse(done.result.text);
}
