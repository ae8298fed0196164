/** A runner watches its bell for a moment, and not where that has no use. */

import assert from "node:assert";
import { Bell } from "../quickjs/bell.ts";

/** More looks than there are while a bell is watched, each of which takes 0.01 ms here. */
const MOMENT = 25;

/** A file that grows by what is given at each look, and how often it was looked at. */
function file(growth: (look: number) => number) {
  const seen = { looks: 0 };
  let left = 0;
  const read = (buffer: Uint8Array) => {
    left += growth(++seen.looks);
    const count = Math.min(left, buffer.length);
    left -= count;
    return count || null;
  };
  return { seen, bell: new Bell(read, () => seen.looks / 100) };
}

Deno.test("it comes back at the first look that finds more said than heard", () => {
  const { seen, bell } = file((look) => look === 1 ? 3 : look === 10 ? 1 : 0);
  bell.watch(3);
  assert.strictEqual(seen.looks, 10);
});

Deno.test("what was said before the look is not waited for", () => {
  const { seen, bell } = file((look) => look === 1 ? 4 : 0);
  bell.watch(3);
  assert.strictEqual(seen.looks, 1);
});

Deno.test("a host that did not ring for what was heard is not watched", () => {
  const { seen, bell } = file((look) => look === 1 ? 2 : 0);
  bell.watch(3);
  assert.strictEqual(seen.looks, 1);
});

Deno.test("it comes back after a moment although nothing is said", () => {
  const { seen, bell } = file((look) => look === 1 ? 3 : 0);
  bell.watch(3);
  assert.ok(seen.looks > 10 && seen.looks < MOMENT, `${seen.looks}`);
});

Deno.test("after each watch in vain twice as many calls go by, and after one that was not, none", () => {
  let said = 3;
  const { seen, bell } = file(() => {
    const more = said;
    said = 0;
    return more;
  });
  const watched = (heard: number) => {
    const before = seen.looks;
    bell.watch(heard);
    return seen.looks > before;
  };
  const vain = Array.from({ length: 12 }, () => watched(3));
  assert.deepStrictEqual(vain.map(Number).join(""), "101000100000");
  for (let i = 0; i < 2; i++) watched(3);
  said = 1;
  assert.ok(watched(3));
  assert.ok(watched(4));
  assert.ok(!watched(4));
});

Deno.test("a length that grew a lot while nobody looked is caught up with at once", () => {
  const { bell, seen } = file((look) => look === 1 ? 1_000_000 : look === 20 ? 1 : 0);
  bell.watch(1_000_000);
  assert.strictEqual(seen.looks, 20);
});
