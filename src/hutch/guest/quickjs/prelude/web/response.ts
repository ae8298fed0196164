/** `Response`: what upstream answered, or what a wrapper makes itself. */

import { hideClass } from "../hide.ts";
import { Body, copy, given, untouched } from "./body.ts";
import { fixedHeaders, type HeaderPair, Headers, type HeadersInit } from "./headers.ts";
import type { Source } from "./source.ts";

const BODILESS = [101, 204, 205, 304];
const REDIRECTS = [301, 302, 303, 307, 308];

interface ResponseInit {
  status?: unknown;
  statusText?: unknown;
  headers?: HeadersInit;
}

/** What the host says of a response. */
export interface Head {
  status: number;
  statusText: string;
  url: string;
  redirected: boolean;
  headers: HeaderPair[];
  /** Whether the host still has what it sent of the body. */
  kept: boolean;
}

interface Facts {
  status: number;
  statusText: string;
  headers: Headers;
  url: string;
  redirected: boolean;
  type: string;
  /** The host's number for it, as long as its body has not been asked for beyond what came with it. */
  held: () => number | null;
}

class Response extends Body {
  #facts: Facts;

  constructor(body?: unknown, init: ResponseInit = {}, facts?: Facts, source?: Source | null) {
    const own = facts === undefined ? given(body) : null;
    super(own ? own.source : source!);
    this.#facts = facts ?? described(init ?? {}, own!.type);
    if (own?.source && BODILESS.includes(this.status)) {
      throw new TypeError(`Response: one with status ${this.status} has no body`);
    }
  }

  static made(facts: Facts, source: Source | null): Response {
    return new Response(null, {}, facts, source);
  }

  static held(response: Response): number | null {
    return untouched(response) ? response.#facts.held() : null;
  }

  static json(data: unknown, init: ResponseInit = {}): Response {
    const text = JSON.stringify(data);
    if (text === undefined) throw new TypeError("Response.json: expected a JSON value");
    const headers = new Headers(init.headers);
    if (!headers.has("content-type")) headers.set("content-type", "application/json");
    return new Response(text, { ...init, headers });
  }

  static error(): Response {
    return made(own(0, "", fixedHeaders([]), "error"), null);
  }

  static redirect(url: unknown, status = 302): Response {
    if (!REDIRECTS.includes(status)) throw new RangeError(`Response.redirect: ${status} is no redirect`);
    return made(own(status, "", fixedHeaders([["location", new URL(`${url}`).href]])), null);
  }

  get status(): number {
    return this.#facts.status;
  }
  get ok(): boolean {
    return this.status >= 200 && this.status <= 299;
  }
  get statusText(): string {
    return this.#facts.statusText;
  }
  get headers(): Headers {
    return this.#facts.headers;
  }
  get url(): string {
    return this.#facts.url;
  }
  get redirected(): boolean {
    return this.#facts.redirected;
  }
  get type(): string {
    return this.#facts.type;
  }

  clone(): Response {
    return made(this.#facts, copy(this));
  }
}

function own(status: number, statusText: string, headers: Headers, type = "default"): Facts {
  return { status, statusText, headers, url: "", redirected: false, type, held: () => null };
}

function described(init: ResponseInit, type: string | null): Facts {
  const status = init.status === undefined ? 200 : Number(init.status);
  if (!Number.isInteger(status) || status < 200 || status > 599) {
    throw new RangeError("Response: status must be a whole number from 200 to 599");
  }
  const headers = new Headers(init.headers);
  if (type && !headers.has("content-type")) headers.set("content-type", type);
  return own(status, `${init.statusText ?? ""}`, headers);
}

/** The response that the host speaks of. */
export function fromHost(head: Head, source: Source | null, held: () => number | null): Response {
  const { status, statusText, url, redirected } = head;
  const headers = fixedHeaders(head.headers);
  const bare = BODILESS.includes(status) ? null : source;
  return made({ status, statusText, headers, url, redirected, type: "basic", held }, bare);
}

/** The host's number of a response that came from it and whose body it still has. */
export function heldBy(value: unknown): number | null {
  return value instanceof Response ? held(value) : null;
}

const { made, held } = Response;
delete (Response as any).made;
delete (Response as any).held;
export type { Response };
hideClass("Response", Response);
