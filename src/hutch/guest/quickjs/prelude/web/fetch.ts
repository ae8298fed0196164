/** `fetch`, implemented by calls of the host, which has the network and the secrets. */

import { defineGlobal } from "../define.ts";
import { readPieces } from "./body.ts";
import { headerPairs } from "./headers.ts";
import { Request, type RequestInit, signalOf } from "./request.ts";
import { fromHost, type Head, type Response } from "./response.ts";
import { concatBytes, type Piece, type Source, textOf } from "./source.ts";

/** The host's tools for requests. */
export interface FetchTools {
  send(input: unknown): Promise<unknown>;
  read(input: unknown): Promise<unknown>;
  drop(input: unknown): Promise<unknown>;
}

/** A part of a body; empty without `text` and `base64`. */
interface Part {
  text?: string;
  base64?: string;
  last?: boolean;
  error?: string;
}

let tools: FetchTools | undefined;
let lastId = 0;

export function provideFetchTools(fetchTools: FetchTools): void {
  tools = fetchTools;
}

async function fetch(input: unknown, init?: RequestInit): Promise<Response> {
  const request = new Request(input, init);
  const { method, url, redirect } = request, signal = signalOf(request);
  signal?.throwIfAborted();
  if (!tools) throw new TypeError("fetch: there is no network here");
  const body = request.body ? encodeBody(await readPieces(request)) : null;
  const id = ++lastId;
  const reply = tools.send({ id, method, url, redirect, headers: headerPairs(request.headers), body });
  const head = await abortable(signal, id, reply) as Head & Part;
  if (head.error !== undefined) throw new TypeError(head.error);
  return createResponse(id, head, signal);
}

function createResponse(id: number, head: Head & Part, signal: AbortSignal | null): Response {
  let firstPiece = pieceOf(head), ended = head.last === true, hasReadMore = false;
  const source: Source = {
    async pull() {
      if (firstPiece !== null) {
        const piece = firstPiece;
        firstPiece = null;
        return piece;
      }
      if (ended) return null;
      hasReadMore = true;
      signal?.throwIfAborted();
      const part = await abortable(signal, id, tools!.read({ id })) as Part;
      if (part.error !== undefined) throw new TypeError(part.error);
      ended = part.last === true;
      return pieceOf(part) ?? (ended ? null : "");
    },
    cancel() {
      firstPiece = null;
      if (!ended) drop(id);
      ended = true;
    },
  };
  return fromHost(head, source, () => hasReadMore || !head.kept ? null : id);
}

/** Waits for the host's reply. If the signal aborts first, the host drops the request. */
function abortable(signal: AbortSignal | null, id: number, reply: Promise<unknown>): Promise<unknown> {
  if (!signal) return reply.catch(throwTypeError);
  return new Promise((resolve, reject) => {
    const abort = () => {
      drop(id);
      reject(signal.reason);
    };
    signal.addEventListener("abort", abort, { once: true });
    reply.catch(throwTypeError).finally(() => signal.removeEventListener("abort", abort)).then(
      resolve,
      reject,
    );
  });
}

function throwTypeError(error: any): never {
  throw new TypeError(`fetch: ${error?.message}`, { cause: error });
}

function drop(id: number): void {
  tools!.drop({ id }).catch(() => {});
}

function pieceOf({ text, base64 }: Part): Piece | null {
  return text ?? (base64 === undefined ? null : Uint8Array.fromBase64(base64));
}

function encodeBody(pieces: Piece[]): Part {
  return pieces.every((piece) => typeof piece === "string")
    ? { text: textOf(pieces) }
    : { base64: concatBytes(pieces).toBase64() };
}

defineGlobal("fetch", fetch);
