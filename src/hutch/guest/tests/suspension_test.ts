/** Tests of executions that are suspended in one runner and continue in another. */

import assert from "node:assert";
import { applyDifference, encodeDifference } from "../quickjs/memory_difference.ts";
import { createRunner, executeMessage, test } from "./runner.ts";

const MAX_BYTES = 64 << 20;

/** A runner whose messages can be awaited by type. */
class Host {
  readonly messages: any[] = [];
  readonly runner = createRunner((message) => {
    this.messages.push(message);
    for (const check of this.#checks) check();
  });
  #checks: (() => void)[] = [];

  /** Waits until there are `count` messages of a type, and returns them. */
  async next(type: string, count = 1): Promise<any[]> {
    const { promise, resolve } = Promise.withResolvers<any[]>();
    const check = () => {
      const found = this.messages.filter((message) => message.type === type);
      if (found.length >= count) resolve(found);
    };
    this.#checks.push(check);
    check();
    return await promise;
  }

  answer(callId: string, result: unknown): void {
    this.runner.receive({ type: "tool_result", callId, ok: true, result });
  }
}

interface Suspended {
  code: string;
  options: object;
  state: any;
  memory: any[];
  calls: any[];
}

/**
 * Starts an execution, suspends it after `callCount` calls, and returns the state that the host would store.
 */
async function suspend(code: string, callCount = 1, options: object = {}): Promise<Suspended> {
  const host = new Host(), message = executeMessage(code);
  host.runner.receive({ ...message, options: { ...message.options, ...options } });
  const calls = callCount ? await host.next("tool_call", callCount) : [];
  host.runner.receive({ type: "suspend", id: "1", maxBytes: MAX_BYTES });
  const [{ state, tooLarge }] = await host.next("suspended");
  assert.equal(tooLarge, undefined);
  const memory = host.messages.filter(({ type }) => type === "memory");
  return { code, options, state: JSON.parse(JSON.stringify(state)), memory, calls };
}

function resume({ code, options, state, memory }: Suspended): Host {
  const host = new Host(), message = executeMessage(code);
  for (const part of memory) host.runner.receive(part);
  host.runner.receive({ ...message, options: { ...message.options, ...options }, state });
  return host;
}

async function resultOf(host: Host): Promise<any> {
  const [{ ok, result, error }] = await host.next("done");
  assert(ok, error?.message);
  return result;
}

test("an execution that waits in Promise.all continues in another runner", async () => {
  const code = `
    const seen = new Map([["before", new Date(5)]]);
    const twice = (x) => x * 2;
    const [a, b] = await Promise.all([upstream.send({ n: 1 }), upstream.read({ n: 2 })]);
    return [twice(a), b.text, [...seen.keys()], seen.get("before").getTime(), this === undefined];`;
  const suspended = await suspend(code, 2);
  const host = resume(suspended);
  const [send, read] = suspended.calls;
  host.answer(read.callId, { text: "later" });
  host.answer(send.callId, 21);
  assert.deepEqual(await resultOf(host), [42, "later", ["before"], 5, false]);
});

test("a continued execution can call tools, fail with them and be suspended again", async () => {
  const code = `
    const first = await upstream.send(1);
    const second = await upstream.read(first + 1);
    try { await upstream.drop(second + 1) } catch (e) { return [first, second, e.code, e.message] }`;
  let suspended = await suspend(code);
  for (const value of [10, 20]) {
    const host = resume(suspended);
    host.answer(suspended.calls[0].callId, value);
    const calls = await host.next("tool_call");
    assert.equal(calls[0].input, value + 1);
    host.runner.receive({ type: "suspend", id: "1", maxBytes: MAX_BYTES });
    const [{ state }] = await host.next("suspended");
    const memory = host.messages.filter(({ type }) => type === "memory");
    suspended = { ...suspended, state, memory, calls };
  }
  const host = resume(suspended);
  const error = { code: "denied", message: "No" };
  host.runner.receive({ type: "tool_result", callId: suspended.calls[0].callId, ok: false, error });
  assert.deepEqual(await resultOf(host), [10, 20, "denied", "No"]);
});

test("logs, elapsed time and error positions go on where they were", async () => {
  const code = `console.log("one");\nawait upstream.send();\nconsole.log("two");\nthrow new Error("end");`;
  const suspended = await suspend(code);
  suspended.state.elapsedMs += 1_000;
  const host = resume(suspended);
  host.answer(suspended.calls[0].callId, null);
  const [done] = await host.next("done");
  assert.deepEqual(done.logs, ["one", "two"]);
  assert.equal(done.error.line, 4);
  assert(done.durationMs >= 1_000);
});

test("an execution whose time is used up times out when it continues", async () => {
  const suspended = await suspend("await upstream.send()");
  suspended.state.elapsedMs = 6_000;
  const [done] = await resume(suspended).next("done");
  assert.equal(done.error.code, "timeout");
});

test("timers continue with the time that was left", async () => {
  const code = `
    let ticks = 0;
    const repeat = setInterval(() => ticks++, 1);
    await new Promise((resolve) => setTimeout(resolve, 4_000));
    while (ticks < 3) await new Promise((resolve) => setTimeout(resolve, 1));
    clearInterval(repeat);
    return ticks >= 3;`;
  const suspended = await suspend(code, 0);
  const timers: number[][] = suspended.state.timers;
  assert(timers.some(([, left, interval]) => interval === 0 && left > 3_000 && left <= 4_000));
  suspended.state.timers = timers.map(([id, , interval]) => [id, 0, interval]);
  assert.equal(await resultOf(resume(suspended)), true);
});

test("two copies of one execution draw different random numbers", async () => {
  const suspended = await suspend("await upstream.send(); return [Math.random(), crypto.randomUUID()]");
  const results = await Promise.all([1, 2].map(() => {
    const host = resume(suspended);
    host.answer(suspended.calls[0].callId, null);
    return resultOf(host);
  }));
  assert.notEqual(results[0][0], results[1][0]);
  assert.notEqual(results[0][1], results[1][1]);
});

test("an execution that computes is suspended when it next waits", async () => {
  const host = new Host();
  const code = "let n = 0; for (let i = 0; i < 3e6; i++) n += i; return await upstream.send(n)";
  const message = executeMessage(code);
  host.runner.receive({ ...message, options: { ...message.options, timeoutMs: 60_000 } });
  host.runner.receive({ type: "suspend", id: "1", maxBytes: MAX_BYTES });
  const [{ state }] = await host.next("suspended");
  assert.equal(state.calls.length, 1);
});

test("large data continues, and is refused above the limit without an end of the execution", async () => {
  const code = `
    const rows = Array.from({ length: 20_000 }, (_, i) => ({ i, name: "row " + i }));
    await upstream.send();
    return rows.reduce((sum, { i, name }) => sum + i + name.length, 0);`;
  const suspended = await suspend(code);
  assert(suspended.memory.length > 1);
  const host = resume(suspended);
  const [{ callId }] = suspended.calls;
  host.runner.receive({ type: "suspend", id: "1", maxBytes: 1_000 });
  const [{ tooLarge }] = await host.next("suspended");
  assert(tooLarge > 1_000_000);
  host.answer(callId, null);
  const sum = Array.from({ length: 20_000 }, (_, i) => i + `row ${i}`.length).reduce((a, b) => a + b);
  assert.equal(await resultOf(host), sum);
});

test("a state whose memory exceeds the memory limit is refused", async () => {
  const code = `const data = "x".repeat(4e6) + Math.random(); await upstream.send(); return data.length`;
  const suspended = await suspend(code);
  suspended.options = { memoryLimitBytes: 1 << 20 };
  const [{ ok, error }] = await resume(suspended).next("done");
  assert(!ok);
  assert.match(error.message, /memory limit/);
});

test("invalid memory ends only its own execution", async () => {
  const suspended = await suspend("return await upstream.send()");
  const bytes = Uint8Array.fromBase64(suspended.memory[0].data);
  for (const data of [bytes.subarray(0, 6), bytes.map((byte) => byte ^ 0x5a), new Uint8Array(8).fill(255)]) {
    const host = resume({ ...suspended, memory: [{ ...suspended.memory[0], data: data.toBase64() }] });
    host.answer(suspended.calls[0].callId, 1);
    host.runner.receive(executeMessage("return 1 + 1", { id: "2" }));
    const done = (await host.next("done", 1)).find(({ id }) => id === "2") ??
      (await host.next("done", 2)).find(({ id }) => id === "2");
    assert.equal(done.result, 2);
    host.runner.receive({ type: "cancel", id: "1" });
  }
});

Deno.test("a difference of memory can be applied to the image, and an invalid one is refused", () => {
  let state = Deno.pid;
  const random = (count: number) => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31) % count;
  for (let round = 0; round < 200; round++) {
    const base = Uint32Array.from({ length: random(200) }, () => random(3));
    const memory = new Uint32Array(base.length + random(50));
    memory.set(base);
    for (let i = random(40); i > 0; i--) memory[random(memory.length || 1)] = random(2 ** 31);
    const words = encodeDifference(memory, base, Infinity), restored = new Uint32Array(memory.length);
    assert(typeof words !== "number");
    // If a difference is too large, only its size is computed. Building it would double the memory.
    assert.deepEqual(encodeDifference(memory, base, words.byteLength), words);
    if (words.length) assert.equal(encodeDifference(memory, base, words.byteLength - 1), words.byteLength);
    restored.set(base);
    assert(applyDifference(restored, words));
    assert.deepEqual(restored, memory, `seed ${Deno.pid}, round ${round}`);
  }
  for (const words of [[1], [0, 5, 1], [9, 1, 1], [0, 9, ...Array(9)], [2 ** 32 - 1, 1, 1]]) {
    assert(!applyDifference(new Uint32Array(8), Uint32Array.from(words)), `${words}`);
  }
});
