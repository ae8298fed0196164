/** `Headers`: names without case, values checked, several `set-cookie` kept apart. */

import { hideClass } from "../hide.ts";

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const NO_VALUE = /[\0\r\n]|[^\0-\xff]/;
/** What needs no further look, as most values. */
const PLAIN = /^[\x21-\x7e](?:[ -\x7e]*[\x21-\x7e])?$/;
const EDGES = /^[\t\n\r ]+|[\t\n\r ]+$/g;
const COOKIE = "set-cookie";

/** Names as they are mostly written, which need no look either. */
const KNOWN: Record<string, string> = Object.create(null);
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
) KNOWN[name] = KNOWN[name.toLowerCase()] = name.toLowerCase();

export type HeaderPair = [name: string, value: string];
export type HeadersInit = Headers | Iterable<Iterable<unknown>> | Record<string, unknown> | null | undefined;

export class Headers {
  #pairs: HeaderPair[] = [];
  #fixed = false;

  constructor(init?: HeadersInit) {
    if (init === undefined || init === null) return;
    if (typeof init !== "object" && typeof init !== "function") {
      throw new TypeError("Headers: expected an object or pairs");
    }
    if (init instanceof Headers) this.#pairs = init.#pairs.map(([name, value]) => [name, value]);
    else if (typeof (init as Iterable<unknown>)[Symbol.iterator] === "function") {
      for (const each of init as Iterable<Iterable<unknown>>) {
        const pair = [...each];
        if (pair.length !== 2) throw new TypeError("Headers: expected pairs of a name and a value");
        this.append(pair[0], pair[1]);
      }
    } else for (const name of Object.keys(init)) this.append(name, (init as Record<string, unknown>)[name]);
  }

  /** What came from upstream, which cannot be changed. */
  static fixed(pairs: HeaderPair[]): Headers {
    const headers = new Headers();
    headers.#pairs = pairs;
    headers.#fixed = true;
    return headers;
  }

  static pairs(headers: Headers): HeaderPair[] {
    return headers.#pairs;
  }

  #name(name: unknown): string {
    const text = `${name}`, known = KNOWN[text];
    if (known) return known;
    if (!TOKEN.test(text)) throw new TypeError(`Headers: ${JSON.stringify(text)} is no name of a header`);
    return text.toLowerCase();
  }

  #changed(name: unknown): string {
    const key = this.#name(name);
    if (this.#fixed) throw new TypeError("Headers: those of a response from upstream cannot be changed");
    return key;
  }

  append(name: unknown, value: unknown): void {
    const key = this.#changed(name);
    this.#pairs.push([key, checked(key, value)]);
  }

  set(name: unknown, value: unknown): void {
    const key = this.#changed(name), text = checked(key, value);
    const at = this.#pairs.findIndex(([each]) => each === key);
    this.#pairs = this.#pairs.filter(([each], i) => each !== key || i === at);
    if (at < 0) this.#pairs.push([key, text]);
    else this.#pairs[at] = [key, text];
  }

  delete(name: unknown): void {
    const key = this.#changed(name);
    this.#pairs = this.#pairs.filter(([each]) => each !== key);
  }

  get(name: unknown): string | null {
    const key = this.#name(name);
    const values = this.#pairs.filter(([each]) => each === key).map(([, value]) => value);
    return values.length ? values.join(key === "cookie" ? "; " : ", ") : null;
  }

  has(name: unknown): boolean {
    const key = this.#name(name);
    return this.#pairs.some(([each]) => each === key);
  }

  getSetCookie(): string[] {
    return this.#pairs.filter(([name]) => name === COOKIE).map(([, value]) => value);
  }

  /** Sorted, and joined but for `set-cookie`. */
  #sorted(): HeaderPair[] {
    if (this.#pairs.length < 2) return [...this.#pairs];
    const names = [...new Set(this.#pairs.map(([name]) => name))].sort();
    return names.flatMap((name): HeaderPair[] =>
      name === COOKIE
        ? this.getSetCookie().map((value): HeaderPair => [name, value])
        : [[name, this.get(name)!]]
    );
  }

  forEach(visit: (value: string, name: string, headers: Headers) => void, self?: unknown): void {
    for (const [name, value] of this.#sorted()) visit.call(self, value, name, this);
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

  /** For `console` and for who returns them as they are. */
  toJSON(): Record<string, string> {
    return Object.fromEntries(this.#sorted());
  }
}

function checked(name: string, value: unknown): string {
  const given = `${value}`;
  if (PLAIN.test(given)) return given;
  const text = given.replace(EDGES, "");
  if (NO_VALUE.test(text)) {
    throw new TypeError(`Headers: the value of ${name} has a line break, or a character beyond Latin-1`);
  }
  return text;
}

export const { fixed: fixedHeaders, pairs: headerPairs } = Headers;
delete (Headers as any).fixed;
delete (Headers as any).pairs;
hideClass("Headers", Headers);
