/** Tests of sending and receiving messages. */

import assert from "node:assert";
import {
  callTargets,
  doneLine,
  type HostMessage,
  isJson,
  type Pipe,
  providerTools,
  toolCallLine,
  Wire,
} from "../wire.ts";

function pipe(chunks: string[]): Pipe & { written: string[] } {
  const written: string[] = [];
  const unread = chunks.map((chunk) => new TextEncoder().encode(chunk));
  return {
    written,
    read(buffer) {
      const chunk = unread.shift();
      if (!chunk) return Promise.resolve(null);
      buffer.set(chunk);
      return Promise.resolve(chunk.length);
    },
    write(bytes) {
      const part = bytes.subarray(0, 7);
      written.push(new TextDecoder().decode(part));
      return Promise.resolve(part.length);
    },
  };
}

Deno.test("lines are reassembled from chunks", async () => {
  const messages: HostMessage[] = [];
  const text = '{"type":"cancel","id":"é1"}\n{"type":"cancel","id":"2"}\n';
  await new Wire(pipe([text.slice(0, 9), text.slice(9, 40), text.slice(40)])).listen((m) => messages.push(m));
  assert.deepStrictEqual(messages.map((m) => (m as { id: string }).id), ["é1", "2"]);
});

Deno.test("every line is counted once, even if it is split or invalid", async () => {
  const wire = new Wire(pipe(['{"type":"can', 'cel","id":"1"}\n{}\n', "no JSON\n\nhalf a li"]));
  const counts: number[] = [];
  await wire.listen(() => counts.push(wire.linesReceived));
  assert.deepStrictEqual([counts, wire.linesReceived], [[1, 2], 4]);
});

Deno.test("lines are written in order, also with short writes", async () => {
  const sink = pipe([]);
  const wire = new Wire(sink);
  wire.send("first line\n");
  wire.send("second\n");
  await wire.drained();
  assert.strictEqual(sink.written.join(""), "first line\nsecond\n");
});

Deno.test("with a synchronous pipe, flush writes immediately", () => {
  const written: string[] = [];
  const wire = new Wire({
    ...pipe([]),
    writeSync(bytes) {
      written.push(new TextDecoder().decode(bytes));
      return bytes.length;
    },
  });
  wire.send("now\n");
  wire.flush();
  assert.deepStrictEqual(written, ["now\n"]);
});

Deno.test("`done` contains the result as JSON", () => {
  const outcome = { ok: true, result: '{"a":1}', logs: ["x"], logsTruncated: false, durationMs: 1.5 };
  assert.deepStrictEqual(JSON.parse(doneLine("e", outcome)), {
    type: "done",
    id: "e",
    ok: true,
    durationMs: 1.5,
    logs: ["x"],
    result: { a: 1 },
  });
});

Deno.test("only one line of valid JSON is accepted for a message", () => {
  assert.ok(isJson('{"a":[1]}'));
  for (const text of ['{"a":1}\n', '1,"id":"other"', "", "undefined", '{"a":1}}']) {
    assert.ok(!isJson(text), text);
  }
});

Deno.test("a call names the tool by its index among those of all providers", () => {
  const manifest = (name: string, ...tools: string[]) => ({
    name,
    types: "",
    tools: Object.fromEntries(tools.map((tool) => [tool, { safeName: tool, originalName: tool }])),
  });
  const providers = [manifest("a", "x", "y"), manifest("b", "z")];
  assert.deepStrictEqual(providerTools(providers), [["a", ["x", "y"]], ["b", ["z"]]]);
  const call = JSON.parse(toolCallLine("e", "c1", callTargets(providers)[2], '{"n":1}'));
  assert.deepStrictEqual(
    [call.providerName, call.safeToolName, call.input, call.callId, call.id],
    ["b", "z", { n: 1 }, "c1", "e"],
  );
});
