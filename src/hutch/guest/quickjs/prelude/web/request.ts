/** `Request`. Properties without effect here, such as `mode` and `cache`, are only stored. */

import { defineGlobalClass } from "../define.ts";
import { Body, copySource, toSource } from "./body.ts";
import { Headers, type HeadersInit } from "./headers.ts";

const METHOD = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const NORMALIZED = /^(delete|get|head|options|post|put)$/i;
const FORBIDDEN = /^(connect|trace|track)$/i;
/**
 * Matches most URLs that the parser would not change. The parser is not called for these URLs, because
 * calling it takes longer than all other work of the constructor.
 */
const NORMAL_URL = /^https:\/\/[a-z][a-z0-9-]*(?:\.[a-z][a-z0-9-]*)+\/[A-Za-z0-9\/_~?&=%+,;:@!$()*.-]*$/;
const REDIRECTS = ["follow", "error", "manual"];

export interface RequestInit {
  method?: unknown;
  headers?: HeadersInit;
  body?: unknown;
  redirect?: unknown;
  signal?: AbortSignal | null;
  [other: string]: unknown;
}

export class Request extends Body {
  #signal: AbortSignal | null;
  readonly method: string;
  readonly url: string;
  readonly headers: Headers;
  readonly redirect: string;
  readonly mode: unknown;
  readonly cache: unknown;
  readonly credentials: unknown;
  readonly referrer: unknown;
  readonly keepalive: boolean;

  constructor(input: unknown, init: RequestInit = {}) {
    const original = input instanceof Request ? input : null;
    const body = init?.body === undefined || init.body === null ? null : toSource(init.body);
    super(body ? body.source : original ? copySource(original) : null);
    init ??= {};
    const method = `${init.method ?? original?.method ?? "GET"}`;
    if (!METHOD.test(method) || FORBIDDEN.test(method)) {
      throw new TypeError(`Request: the method ${JSON.stringify(method)} is not allowed`);
    }
    this.method = NORMALIZED.test(method) ? method.toUpperCase() : method;
    this.url = original ? original.url : normalizeUrl(input);
    this.headers = new Headers(init.headers ?? original?.headers);
    if (body?.type && !this.headers.has("content-type")) this.headers.set("content-type", body.type);
    if (this.body && (this.method === "GET" || this.method === "HEAD")) {
      throw new TypeError(`Request: ${this.method} cannot have a body`);
    }
    this.redirect = `${init.redirect ?? original?.redirect ?? "follow"}`;
    if (!REDIRECTS.includes(this.redirect)) {
      throw new TypeError(`Request: redirect must be one of ${REDIRECTS.join(", ")}`);
    }
    this.#signal = init.signal ?? (original ? original.#signal : null);
    this.mode = init.mode ?? original?.mode ?? "cors";
    this.cache = init.cache ?? original?.cache ?? "default";
    this.credentials = init.credentials ?? original?.credentials ?? "same-origin";
    this.referrer = init.referrer ?? original?.referrer ?? "about:client";
    this.keepalive = Boolean(init.keepalive ?? original?.keepalive);
  }

  /** Returns the signal that was passed in. A signal that the getter `signal` created is never aborted. */
  static signalOf(request: Request): AbortSignal | null {
    return request.#signal;
  }

  get signal(): AbortSignal {
    return this.#signal ??= new AbortController().signal;
  }

  clone(): Request {
    return new Request(this);
  }
}

function normalizeUrl(input: unknown): string {
  const text = `${input}`;
  if (NORMAL_URL.test(text) && !text.includes("/.")) return text;
  const url = new URL(text);
  if (url.username || url.password) {
    throw new TypeError("Request: a URL cannot have a user name or password in it; use a header");
  }
  return url.href;
}

export const { signalOf } = Request;
delete (Request as any).signalOf;
defineGlobalClass("Request", Request);
