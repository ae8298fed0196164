/** `Headers`. */

import { defineGlobalClass } from "../define.ts";

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const INVALID_VALUE = /[\0\r\n]|[^\0-\xff]/;
/** Matches most values, which then need no further check. */
const PLAIN = /^[\x21-\x7e](?:[ -\x7e]*[\x21-\x7e])?$/;
const EDGES = /^[\t\n\r ]+|[\t\n\r ]+$/g;
const COOKIE = "set-cookie";

/** Frequent names, which need no check. */
const FREQUENT_NAMES: Record<string, string> = Object.create(null);
for (
  const name of [
    "Accept",
    "Authorization",
    "Content-Length",
    "Content-Type",
    "Cookie",
    "Origin",
    "User-Agent",
  ]
) FREQUENT_NAMES[name] = FREQUENT_NAMES[name.toLowerCase()] = name.toLowerCase();

export type HeaderPair = [name: string, value: string];
export type HeadersInit = Headers | Iterable<Iterable<unknown>> | Record<string, unknown> | null | undefined;

export class Headers {
  #pairs: HeaderPair[] = [];
  #isImmutable = false;

  constructor(init?: HeadersInit) {
    if (init === undefined || init === null) return;
    if (typeof init !== "object" && typeof init !== "function") {
      throw new TypeError("Headers: expected an object or pairs");
    }
    if (init instanceof Headers) this.#pairs = init.#pairs.map(([name, value]) => [name, value]);
    else if (typeof (init as Iterable<unknown>)[Symbol.iterator] === "function") {
      for (const entry of init as Iterable<Iterable<unknown>>) {
        const pair = [...entry];
        if (pair.length !== 2) throw new TypeError("Headers: expected pairs of a name and a value");
        this.append(pair[0], pair[1]);
      }
    } else for (const name of Object.keys(init)) this.append(name, (init as Record<string, unknown>)[name]);
  }

  static immutable(pairs: HeaderPair[]): Headers {
    const headers = new Headers();
    headers.#pairs = pairs;
    headers.#isImmutable = true;
    return headers;
  }

  static pairs(headers: Headers): HeaderPair[] {
    return headers.#pairs;
  }

  #name(name: unknown): string {
    const text = `${name}`, frequent = FREQUENT_NAMES[text];
    if (frequent) return frequent;
    if (!TOKEN.test(text)) throw new TypeError(`Headers: ${JSON.stringify(text)} is not a valid name`);
    return text.toLowerCase();
  }

  #mutableName(name: unknown): string {
    const key = this.#name(name);
    if (this.#isImmutable) {
      throw new TypeError("Headers: the headers of a fetched response cannot be changed");
    }
    return key;
  }

  append(name: unknown, value: unknown): void {
    const key = this.#mutableName(name);
    this.#pairs.push([key, normalizeValue(key, value)]);
  }

  set(name: unknown, value: unknown): void {
    const key = this.#mutableName(name), text = normalizeValue(key, value);
    const index = this.#pairs.findIndex(([other]) => other === key);
    this.#pairs = this.#pairs.filter(([other], i) => other !== key || i === index);
    if (index < 0) this.#pairs.push([key, text]);
    else this.#pairs[index] = [key, text];
  }

  delete(name: unknown): void {
    const key = this.#mutableName(name);
    this.#pairs = this.#pairs.filter(([other]) => other !== key);
  }

  get(name: unknown): string | null {
    const key = this.#name(name);
    const values = this.#pairs.filter(([other]) => other === key).map(([, value]) => value);
    return values.length ? values.join(key === "cookie" ? "; " : ", ") : null;
  }

  has(name: unknown): boolean {
    const key = this.#name(name);
    return this.#pairs.some(([other]) => other === key);
  }

  getSetCookie(): string[] {
    return this.#pairs.filter(([name]) => name === COOKIE).map(([, value]) => value);
  }

  /** Returns the headers sorted by name. Joins values with the same name, except for `set-cookie`. */
  #sorted(): HeaderPair[] {
    if (this.#pairs.length < 2) return [...this.#pairs];
    const names = [...new Set(this.#pairs.map(([name]) => name))].sort();
    return names.flatMap((name): HeaderPair[] =>
      name === COOKIE
        ? this.getSetCookie().map((value): HeaderPair => [name, value])
        : [[name, this.get(name)!]]
    );
  }

  forEach(callback: (value: string, name: string, headers: Headers) => void, self?: unknown): void {
    for (const [name, value] of this.#sorted()) callback.call(self, value, name, this);
  }

  *entries(): Generator<HeaderPair> {
    yield* this.#sorted();
  }

  *keys(): Generator<string> {
    for (const [name] of this.#sorted()) yield name;
  }

  *values(): Generator<string> {
    for (const [, value] of this.#sorted()) yield value;
  }

  [Symbol.iterator](): Generator<HeaderPair> {
    return this.entries();
  }

  /** Used by `console`, and by wrappers that return headers as JSON. */
  toJSON(): Record<string, string> {
    return Object.fromEntries(this.#sorted());
  }
}

function normalizeValue(name: string, value: unknown): string {
  const original = `${value}`;
  if (PLAIN.test(original)) return original;
  const text = original.replace(EDGES, "");
  if (INVALID_VALUE.test(text)) {
    throw new TypeError(`Headers: the value of ${name} has a line break, or a character beyond Latin-1`);
  }
  return text;
}

export const { immutable: immutableHeaders, pairs: headerPairs } = Headers;
delete (Headers as any).immutable;
delete (Headers as any).pairs;
defineGlobalClass("Headers", Headers);
