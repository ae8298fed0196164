/** `Request`. What has no meaning here, such as `mode` and `cache`, is kept and not looked at. */

import { hideClass } from "../hide.ts";
import { Body, copy, given } from "./body.ts";
import { Headers, type HeadersInit } from "./headers.ts";

const METHOD = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const NORMAL = /^(delete|get|head|options|post|put)$/i;
const REFUSED = /^(connect|trace|track)$/i;
/** What the parser would leave as it is; most are so, and asking it takes longer than all the rest. */
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
    const from = input instanceof Request ? input : null;
    const own = init?.body === undefined || init.body === null ? null : given(init.body);
    super(own ? own.source : from ? copy(from) : null);
    init ??= {};
    const method = `${init.method ?? from?.method ?? "GET"}`;
    if (!METHOD.test(method) || REFUSED.test(method)) {
      throw new TypeError(`Request: there is no method ${JSON.stringify(method)}`);
    }
    this.method = NORMAL.test(method) ? method.toUpperCase() : method;
    this.url = from ? from.url : address(input);
    this.headers = new Headers(init.headers ?? from?.headers);
    if (own?.type && !this.headers.has("content-type")) this.headers.set("content-type", own.type);
    if (this.body && (this.method === "GET" || this.method === "HEAD")) {
      throw new TypeError(`Request: ${this.method} cannot have a body`);
    }
    this.redirect = `${init.redirect ?? from?.redirect ?? "follow"}`;
    if (!REDIRECTS.includes(this.redirect)) {
      throw new TypeError(`Request: redirect must be one of ${REDIRECTS.join(", ")}`);
    }
    this.#signal = init.signal ?? (from ? from.#signal : null);
    this.mode = init.mode ?? from?.mode ?? "cors";
    this.cache = init.cache ?? from?.cache ?? "default";
    this.credentials = init.credentials ?? from?.credentials ?? "same-origin";
    this.referrer = init.referrer ?? from?.referrer ?? "about:client";
    this.keepalive = Boolean(init.keepalive ?? from?.keepalive);
  }

  /** The one that was given, which alone can ever come. */
  static given(request: Request): AbortSignal | null {
    return request.#signal;
  }

  get signal(): AbortSignal {
    return this.#signal ??= new AbortController().signal;
  }

  clone(): Request {
    return new Request(this);
  }
}

function address(input: unknown): string {
  const text = `${input}`;
  if (NORMAL_URL.test(text) && !text.includes("/.")) return text;
  const url = new URL(text);
  if (url.username || url.password) {
    throw new TypeError("Request: a URL cannot have a user name or password in it; use a header");
  }
  return url.href;
}

export const { given: givenSignal } = Request;
delete (Request as any).given;
hideClass("Request", Request);
