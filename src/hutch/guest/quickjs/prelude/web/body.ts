/** The body of requests and responses. */

import { collect, concatBytes, fromPiece, type Piece, type Source, tee, textOf } from "./source.ts";
import { createStream, isDisturbed, ReadableStream, takeSource } from "./stream.ts";

const { parse } = JSON;

export interface BodyInit {
  source: Source | null;
  type: string | null;
}

/** Converts a value to a source and its default content type. */
export function toSource(body: unknown): BodyInit {
  if (body === null || body === undefined) return { source: null, type: null };
  if (body instanceof ReadableStream) return { source: takeSource(body), type: null };
  if (body instanceof ArrayBuffer) return { source: fromPiece(new Uint8Array(body.slice(0))), type: null };
  if (ArrayBuffer.isView(body)) {
    const view = new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
    return { source: fromPiece(new Uint8Array(view)), type: null };
  }
  const type = body instanceof URLSearchParams
    ? "application/x-www-form-urlencoded;charset=UTF-8"
    : "text/plain;charset=UTF-8";
  return { source: fromPiece(`${body}`.toWellFormed()), type };
}

export class Body {
  #source: Source | null;
  #used = false;
  #stream: ReadableStream | null = null;

  constructor(source: Source | null) {
    this.#source = source;
  }

  /** Returns a source with the same data as `body`. The body itself can still be read. */
  static copySource(body: Body): Source | null {
    if (body.bodyUsed || body.#stream?.locked) throw new TypeError("The body was read already");
    if (!body.#source) return null;
    const source = body.#stream ? takeSource(body.#stream) : body.#source;
    const [own, copy] = tee(source);
    body.#source = own;
    body.#stream = null;
    return copy;
  }

  static isUnread(body: Body): boolean {
    return !body.bodyUsed && !body.#stream?.locked;
  }

  static readPieces(body: Body): Promise<Piece[]> {
    return body.#pieces();
  }

  async #pieces(): Promise<Piece[]> {
    if (!this.#source) return [];
    if (this.bodyUsed) throw new TypeError("The body was read already; use clone() to read it twice");
    if (this.#stream?.locked) throw new TypeError("The body is locked to a reader");
    this.#used = true;
    return await collect(this.#stream ? takeSource(this.#stream) : this.#source);
  }

  get body(): ReadableStream | null {
    if (!this.#source) return null;
    return this.#stream ??= createStream(this.#used ? fromPiece("") : this.#source);
  }

  get bodyUsed(): boolean {
    return this.#used || (this.#stream !== null && isDisturbed(this.#stream));
  }

  async text(): Promise<string> {
    return textOf(await this.#pieces());
  }

  async json(): Promise<unknown> {
    return parse(textOf(await this.#pieces()));
  }

  async bytes(): Promise<Uint8Array> {
    return concatBytes(await this.#pieces());
  }

  async arrayBuffer(): Promise<ArrayBuffer> {
    return concatBytes(await this.#pieces()).buffer;
  }
}

export const { copySource, isUnread, readPieces } = Body;
delete (Body as any).copySource;
delete (Body as any).isUnread;
delete (Body as any).readPieces;
