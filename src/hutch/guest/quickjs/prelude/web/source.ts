/** Sources of a body's pieces. */

import { decodeText, encodeUtf8 } from "../host.ts";

/** Well-formed text, or bytes. Text is only encoded when bytes are needed. */
export type Piece = string | Uint8Array;

export interface Source {
  /** Returns the next piece, or null after the last. Only one call at a time is allowed. */
  pull(): Promise<Piece | null>;
  cancel(): void;
}

export function fromPiece(piece: Piece): Source {
  let next: Piece | null = piece;
  return {
    pull() {
      const piece = next;
      next = null;
      return Promise.resolve(piece);
    },
    cancel() {
      next = null;
    },
  };
}

/** Splits a source in two, and queues pieces for the slower reader. */
export function tee(source: Source): [Source, Source] {
  const queues: Piece[][] = [[], []];
  let open = 2, ended = false, advancing: Promise<void> | undefined;
  const advance = () =>
    advancing ??= source.pull().then((piece) => {
      if (piece === null) ended = true;
      else for (const queue of queues) queue.push(piece);
    }).finally(() => advancing = undefined);
  const branch = (queue: Piece[]): Source => ({
    async pull() {
      while (queue.length === 0 && !ended) await advance();
      return queue.shift() ?? null;
    },
    cancel() {
      queue.length = 0;
      if (--open === 0) source.cancel();
    },
  });
  return [branch(queues[0]), branch(queues[1])];
}

export async function collect(source: Source): Promise<Piece[]> {
  const pieces: Piece[] = [];
  for (let piece = await source.pull(); piece !== null; piece = await source.pull()) pieces.push(piece);
  return pieces;
}

export function bytesOf(piece: Piece): Uint8Array {
  return typeof piece === "string" ? new Uint8Array(encodeUtf8(piece)) : piece;
}

export function concatBytes(pieces: Piece[]): Uint8Array<ArrayBuffer> {
  const parts = pieces.map(bytesOf);
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** Decodes UTF-8 and removes a byte order mark. */
export function textOf(pieces: Piece[]): string {
  if (pieces.every((piece) => typeof piece === "string")) {
    const text = pieces.join("");
    return text.charCodeAt(0) === 0xfeff ? text.slice(1) : text;
  }
  return decodeText(concatBytes(pieces).buffer, "utf-8", 0).slice(1);
}
