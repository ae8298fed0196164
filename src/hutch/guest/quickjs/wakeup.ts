/**
 * Polls a file to learn whether the host has sent more lines than the runner has received.
 *
 * When the host sends a tool result and has a core to spare, it sets the file's length to the number of lines
 * that it has sent. The runner polls for the next result instead of sleeping, because waking up takes a
 * while, and after that the process runs slowly for as long again.
 */

import { clock } from "../clock.ts";

/** Maximum polling time. Most tools that only compute return within this time. */
const POLL_MS = 0.2;
/** Maximum number of consecutive polls that are skipped after slow tools. */
const MAX_SKIPPED = 63;

export class WakeupFile {
  readonly #read: (buffer: Uint8Array) => number | null;
  readonly #now: () => number;
  readonly #buffer = new Uint8Array(65536);
  #linesSent = 0;
  #skipCount = 0;
  #skipsLeft = 0;

  constructor(read: (buffer: Uint8Array) => number | null, now = clock) {
    this.#read = read;
    this.#now = now;
  }

  /** Returns when the host has sent more than `linesReceived` lines, or after POLL_MS. */
  poll(linesReceived: number): void {
    if (this.#skipsLeft > 0) {
      this.#skipsLeft--;
      return;
    }
    this.#update();
    // Do not poll if the last line was not a tool result, or if the host has no core to spare.
    if (this.#linesSent < linesReceived) return;
    for (const until = this.#now() + POLL_MS; this.#linesSent === linesReceived; this.#update()) {
      if (this.#now() < until) continue;
      this.#skipsLeft = this.#skipCount = Math.min(2 * this.#skipCount + 1, MAX_SKIPPED);
      return;
    }
    this.#skipCount = 0;
  }

  #update(): void {
    let count: number;
    do {
      count = this.#read(this.#buffer) ?? 0;
      this.#linesSent += count;
    } while (count === this.#buffer.length);
  }
}
