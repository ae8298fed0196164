/** State of a suspended execution, and the transfer of its memory in parts. */

import { memoryLine, type MemoryPart, type Wire } from "../wire.ts";
import { type SavedMemory } from "./vm.ts";

/**
 * Number of words in one message: large enough to be efficient, small enough that the host can handle other
 * messages in between.
 */
const PART_WORDS = 32 * 1024;

/** State of a VM besides its memory. */
export type VmState = Omit<SavedMemory, "words">;

/**
 * State of a suspended execution, except for its memory. The host stores this state and sends it back. Of all
 * fields, the host changes only `timers`.
 */
export interface SuspendedState {
  memory: VmState;
  calls: [callId: string, number: number, inputBytes: number, items: number][];
  timers: [id: number, millisecondsLeft: number, interval: number][];
  logs: string[];
  logsTruncated: boolean;
  errorCodes: string[];
  elapsedMs: number;
}

export function sendMemory(wire: Wire, id: string, words: Uint32Array): void {
  for (let at = 0; at < words.length; at += PART_WORDS) {
    const part = words.subarray(at, at + PART_WORDS);
    wire.send(memoryLine(id, new Uint8Array(part.buffer, part.byteOffset, part.byteLength).toBase64()));
  }
}

/** Collects the memory of suspended executions until the `execute` that continues them arrives. */
export class MemoryParts {
  readonly #parts = new Map<string, Uint8Array[]>();

  add({ id, data }: MemoryPart): void {
    const parts = this.#parts.get(id) ?? [];
    parts.push(Uint8Array.fromBase64(data));
    this.#parts.set(id, parts);
  }

  /** Returns the memory of an execution and removes it. */
  take(id: string): Uint32Array {
    const parts = this.#parts.get(id) ?? [];
    this.#parts.delete(id);
    const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at);
      at += part.length;
    }
    return new Uint32Array(bytes.buffer, 0, bytes.length >> 2);
  }
}
