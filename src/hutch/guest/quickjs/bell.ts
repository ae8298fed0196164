/**
 * Tells whether the host has said more than was heard, to a process that is awake.
 *
 * With an answer to a tool call the host makes a file as long as the lines that it has said, if a core has nothing
 * better to do than to watch for the next. Once a runner sleeps, it takes a while to be woken, and as long again until it is as fast as before.
 */

import { clock } from "../clock.ts";

/** Most tools that only compute answer within this. */
const WATCH_MS = 0.2;
/** After a tool that took longer, how many calls at the most go by before the next is watched for. */
const MOST_PASSED = 63;

export class Bell {
  readonly #read: (buffer: Uint8Array) => number | null;
  readonly #now: () => number;
  readonly #buffer = new Uint8Array(65536);
  #rung = 0;
  #pass = 0;
  #passing = 0;

  constructor(read: (buffer: Uint8Array) => number | null, now = clock) {
    this.#read = read;
    this.#now = now;
  }

  /** Comes back when more was said than the lines that were heard, or after a moment. */
  watch(heard: number): void {
    if (this.#passing > 0) {
      this.#passing--;
      return;
    }
    this.#count();
    // What was heard last was not rung for: it was no answer, or the host has other use for the core.
    if (this.#rung < heard) return;
    for (const until = this.#now() + WATCH_MS; this.#rung === heard; this.#count()) {
      if (this.#now() < until) continue;
      this.#passing = this.#pass = Math.min(2 * this.#pass + 1, MOST_PASSED);
      return;
    }
    this.#pass = 0;
  }

  #count(): void {
    let count: number;
    do {
      count = this.#read(this.#buffer) ?? 0;
      this.#rung += count;
    } while (count === this.#buffer.length);
  }
}
