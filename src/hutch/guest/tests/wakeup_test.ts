/** Tests of the wake-up file. */

import assert from "node:assert";
import { WakeupFile } from "../quickjs/wakeup.ts";

/** More reads than fit into the polling time; each takes 0.01 ms here. */
const MAX_READS = 25;

/** A file that grows by `growth` at each read, and the number of reads. */
function wakeupFile(growth: (read: number) => number) {
  const stats = { reads: 0 };
  let unread = 0;
  const read = (buffer: Uint8Array) => {
    unread += growth(++stats.reads);
    const count = Math.min(unread, buffer.length);
    unread -= count;
    return count || null;
  };
  return { stats, file: new WakeupFile(read, () => stats.reads / 100) };
}

Deno.test("polling ends at the first read that finds a new line", () => {
  const { stats, file } = wakeupFile((read) => read === 1 ? 3 : read === 10 ? 1 : 0);
  file.poll(3);
  assert.strictEqual(stats.reads, 10);
});

Deno.test("polling ends at once if a line is already there", () => {
  const { stats, file } = wakeupFile((read) => read === 1 ? 4 : 0);
  file.poll(3);
  assert.strictEqual(stats.reads, 1);
});

Deno.test("polling ends at once if the host did not update the file for the last line", () => {
  const { stats, file } = wakeupFile((read) => read === 1 ? 2 : 0);
  file.poll(3);
  assert.strictEqual(stats.reads, 1);
});

Deno.test("polling ends after a moment without a new line", () => {
  const { stats, file } = wakeupFile((read) => read === 1 ? 3 : 0);
  file.poll(3);
  assert.ok(stats.reads > 10 && stats.reads < MAX_READS, `${stats.reads}`);
});

Deno.test("each unsuccessful poll doubles the number of skipped calls, a successful one resets it", () => {
  let growth = 3;
  const { stats, file } = wakeupFile(() => {
    const current = growth;
    growth = 0;
    return current;
  });
  const hasPolled = (linesReceived: number) => {
    const before = stats.reads;
    file.poll(linesReceived);
    return stats.reads > before;
  };
  const polls = Array.from({ length: 12 }, () => hasPolled(3));
  assert.deepStrictEqual(polls.map(Number).join(""), "101000100000");
  for (let i = 0; i < 2; i++) hasPolled(3);
  growth = 1;
  assert.ok(hasPolled(3));
  assert.ok(hasPolled(4));
  assert.ok(!hasPolled(4));
});

Deno.test("a file that grew by more than the buffer is read completely", () => {
  const { file, stats } = wakeupFile((read) => read === 1 ? 1_000_000 : read === 20 ? 1 : 0);
  file.poll(1_000_000);
  assert.strictEqual(stats.reads, 20);
});
