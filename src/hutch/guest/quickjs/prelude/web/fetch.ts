/** `fetch`: a call of the host, which alone has a network and secrets. */

import { hide } from "../hide.ts";
import { pieces } from "./body.ts";
import { headerPairs } from "./headers.ts";
import { givenSignal, Request, type RequestInit } from "./request.ts";
import { fromHost, type Head, type Response } from "./response.ts";
import { joined, type Piece, type Source, textOf } from "./source.ts";

/** The host's tools, once they are lent. */
export interface Upstream {
  send(input: unknown): Promise<unknown>;
  read(input: unknown): Promise<unknown>;
  drop(input: unknown): Promise<unknown>;
}

/** A part of a body on its way; neither for nothing. */
interface Part {
  text?: string;
  base64?: string;
  /** Whether nothing follows. */
  last?: boolean;
  error?: string;
}

let upstream: Upstream | undefined;
let count = 0;

export function connect(tools: Upstream): void {
  upstream = tools;
}

async function fetch(input: unknown, init?: RequestInit): Promise<Response> {
  const request = new Request(input, init);
  const { method, url, redirect } = request, signal = givenSignal(request);
  signal?.throwIfAborted();
  if (!upstream) throw new TypeError("fetch: there is no network here");
  const body = request.body ? written(await pieces(request)) : null;
  const id = ++count;
  const asked = upstream.send({ id, method, url, redirect, headers: headerPairs(request.headers), body });
  const head = await until(signal, id, asked) as Head & Part;
  if (head.error !== undefined) throw new TypeError(head.error);
  return received(id, head, signal);
}

function received(id: number, head: Head & Part, signal: AbortSignal | null): Response {
  let waiting = read(head), ended = head.last === true, asked = false;
  const source: Source = {
    async pull() {
      if (waiting !== null) {
        const piece = waiting;
        waiting = null;
        return piece;
      }
      if (ended) return null;
      asked = true;
      signal?.throwIfAborted();
      const part = await until(signal, id, upstream!.read({ id })) as Part;
      if (part.error !== undefined) throw new TypeError(part.error);
      ended = part.last === true;
      return read(part) ?? (ended ? null : "");
    },
    cancel() {
      waiting = null;
      if (!ended) drop(id);
      ended = true;
    },
  };
  return fromHost(head, source, () => asked || !head.kept ? null : id);
}

/** The answer, unless the signal comes first: then nobody waits for it any more, here or at the host. */
function until(signal: AbortSignal | null, id: number, answer: Promise<unknown>): Promise<unknown> {
  if (!signal) return answer.catch(failed);
  return new Promise((resolve, reject) => {
    const abort = () => {
      drop(id);
      reject(signal.reason);
    };
    signal.addEventListener("abort", abort, { once: true });
    answer.catch(failed).finally(() => signal.removeEventListener("abort", abort)).then(resolve, reject);
  });
}

function failed(error: any): never {
  throw new TypeError(`fetch: ${error?.message}`, { cause: error });
}

function drop(id: number): void {
  upstream!.drop({ id }).catch(() => {});
}

function read({ text, base64 }: Part): Piece | null {
  return text ?? (base64 === undefined ? null : Uint8Array.fromBase64(base64));
}

function written(parts: Piece[]): Part {
  return parts.every((part) => typeof part === "string")
    ? { text: textOf(parts) }
    : { base64: joined(parts).toBase64() };
}

hide("fetch", fetch);
