/** `Response`, from the host or created by a wrapper. */

import { defineGlobalClass } from "../define.ts";
import { Body, copySource, isUnread, toSource } from "./body.ts";
import { type HeaderPair, Headers, type HeadersInit, immutableHeaders } from "./headers.ts";
import type { Source } from "./source.ts";

const STATUS_WITHOUT_BODY = [101, 204, 205, 304];
const REDIRECTS = [301, 302, 303, 307, 308];

interface ResponseInit {
  status?: unknown;
  statusText?: unknown;
  headers?: HeadersInit;
}

/** A response's head from the host. */
export interface Head {
  status: number;
  statusText: string;
  url: string;
  redirected: boolean;
  headers: HeaderPair[];
  /** True if the host still has the part of the body that it sent with the head. */
  kept: boolean;
}

interface ResponseData {
  status: number;
  statusText: string;
  headers: Headers;
  url: string;
  redirected: boolean;
  type: string;
  /**
   * Id of the response on the host, as long as the guest has read only the part of the body that came with
   * the head.
   */
  heldId: () => number | null;
}

class Response extends Body {
  #data: ResponseData;

  constructor(body?: unknown, init: ResponseInit = {}, data?: ResponseData, source?: Source | null) {
    const own = data === undefined ? toSource(body) : null;
    super(own ? own.source : source!);
    this.#data = data ?? dataFromInit(init ?? {}, own!.type);
    if (own?.source && STATUS_WITHOUT_BODY.includes(this.status)) {
      throw new TypeError(`Response: a response with status ${this.status} cannot have a body`);
    }
  }

  static create(data: ResponseData, source: Source | null): Response {
    return new Response(null, {}, data, source);
  }

  static heldIdOf(response: Response): number | null {
    return isUnread(response) ? response.#data.heldId() : null;
  }

  static json(data: unknown, init: ResponseInit = {}): Response {
    const text = JSON.stringify(data);
    if (text === undefined) throw new TypeError("Response.json: expected a JSON value");
    const headers = new Headers(init.headers);
    if (!headers.has("content-type")) headers.set("content-type", "application/json");
    return new Response(text, { ...init, headers });
  }

  static error(): Response {
    return create(responseData(0, "", immutableHeaders([]), "error"), null);
  }

  static redirect(url: unknown, status = 302): Response {
    if (!REDIRECTS.includes(status)) {
      throw new RangeError(`Response.redirect: ${status} is not a redirect status`);
    }
    return create(responseData(status, "", immutableHeaders([["location", new URL(`${url}`).href]])), null);
  }

  get status(): number {
    return this.#data.status;
  }
  get ok(): boolean {
    return this.status >= 200 && this.status <= 299;
  }
  get statusText(): string {
    return this.#data.statusText;
  }
  get headers(): Headers {
    return this.#data.headers;
  }
  get url(): string {
    return this.#data.url;
  }
  get redirected(): boolean {
    return this.#data.redirected;
  }
  get type(): string {
    return this.#data.type;
  }

  clone(): Response {
    return create(this.#data, copySource(this));
  }
}

function responseData(status: number, statusText: string, headers: Headers, type = "default"): ResponseData {
  return { status, statusText, headers, url: "", redirected: false, type, heldId: () => null };
}

function dataFromInit(init: ResponseInit, type: string | null): ResponseData {
  const status = init.status === undefined ? 200 : Number(init.status);
  if (!Number.isInteger(status) || status < 200 || status > 599) {
    throw new RangeError("Response: status must be a whole number from 200 to 599");
  }
  const headers = new Headers(init.headers);
  if (type && !headers.has("content-type")) headers.set("content-type", type);
  return responseData(status, `${init.statusText ?? ""}`, headers);
}

export function fromHost(head: Head, source: Source | null, heldId: () => number | null): Response {
  const { status, statusText, url, redirected } = head;
  const headers = immutableHeaders(head.headers);
  const body = STATUS_WITHOUT_BODY.includes(status) ? null : source;
  return create({ status, statusText, headers, url, redirected, type: "basic", heldId }, body);
}

/** Returns the host's id of a response whose whole body the host still has. */
export function heldId(value: unknown): number | null {
  return value instanceof Response ? heldIdOf(value) : null;
}

const { create, heldIdOf } = Response;
delete (Response as any).create;
delete (Response as any).heldIdOf;
export type { Response };
defineGlobalClass("Response", Response);
