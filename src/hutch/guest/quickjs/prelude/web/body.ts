/** What requests and responses have alike: a body that is read once, whole or as a stream. */

import { collect, joined, type Piece, type Source, tee, textOf, whole } from "./source.ts";
import { disturbed, make, ReadableStream, take } from "./stream.ts";

const { parse } = JSON;

export interface Given {
  source: Source | null;
  type: string | null;
}

/** What can be given as a body, and the content type that it brings along. */
export function given(body: unknown): Given {
  if (body === null || body === undefined) return { source: null, type: null };
  if (body instanceof ReadableStream) return { source: take(body), type: null };
  if (body instanceof ArrayBuffer) return { source: whole(new Uint8Array(body.slice(0))), type: null };
  if (ArrayBuffer.isView(body)) {
    const view = new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
    return { source: whole(new Uint8Array(view)), type: null };
  }
  const type = body instanceof URLSearchParams
    ? "application/x-www-form-urlencoded;charset=UTF-8"
    : "text/plain;charset=UTF-8";
  return { source: whole(`${body}`.toWellFormed()), type };
}

export class Body {
  #source: Source | null;
  #used = false;
  #stream: ReadableStream | null = null;

  constructor(source: Source | null) {
    this.#source = source;
  }

  /** A source for a copy of `body`, which keeps one of its own. */
  static copy(body: Body): Source | null {
    if (body.bodyUsed || body.#stream?.locked) throw new TypeError("The body was read already");
    if (!body.#source) return null;
    const source = body.#stream ? take(body.#stream) : body.#source;
    const [one, other] = tee(source);
    body.#source = one;
    body.#stream = null;
    return other;
  }

  /** Whether all of the body is still where it came from. */
  static untouched(body: Body): boolean {
    return !body.bodyUsed && !body.#stream?.locked;
  }

  static pieces(body: Body): Promise<Piece[]> {
    return body.#pieces();
  }

  async #pieces(): Promise<Piece[]> {
    if (!this.#source) return [];
    if (this.bodyUsed) throw new TypeError("The body was read already; use clone() to read it twice");
    if (this.#stream?.locked) throw new TypeError("The body is locked to a reader");
    this.#used = true;
    return await collect(this.#stream ? take(this.#stream) : this.#source);
  }

  get body(): ReadableStream | null {
    if (!this.#source) return null;
    return this.#stream ??= make(this.#used ? whole("") : this.#source);
  }

  get bodyUsed(): boolean {
    return this.#used || (this.#stream !== null && disturbed(this.#stream));
  }

  async text(): Promise<string> {
    return textOf(await this.#pieces());
  }

  async json(): Promise<unknown> {
    return parse(textOf(await this.#pieces()));
  }

  async bytes(): Promise<Uint8Array> {
    return joined(await this.#pieces());
  }

  async arrayBuffer(): Promise<ArrayBuffer> {
    return joined(await this.#pieces()).buffer;
  }
}

export const { copy, untouched, pieces } = Body;
delete (Body as any).copy;
delete (Body as any).untouched;
delete (Body as any).pieces;
