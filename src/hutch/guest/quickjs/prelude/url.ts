/** `URL`, which uses the parser of the runner, and `URLSearchParams`. */

import { defineGlobalClass } from "./define.ts";
import { url } from "./host.ts";

const { parse } = JSON;
const PARTS = ["protocol", "username", "password", "host", "hostname", "port", "pathname", "search", "hash"];

function callHost(operation: string, href: string, argument: string): string {
  return url(operation, href.toWellFormed(), argument.toWellFormed());
}

type Init = string | Iterable<[string, string]> | Record<string, string> | URLSearchParams;

class URLSearchParams {
  #pairs: [string, string][] = [];
  #onChange: (query: string) => void = () => {};

  constructor(init: Init = "") {
    if (typeof init === "string") this.#pairs = parseQuery(init);
    else if (init && typeof (init as Iterable<unknown>)[Symbol.iterator] === "function") {
      for (const [name, value] of init as Iterable<[string, string]>) {
        this.#pairs.push([`${name}`, `${value}`]);
      }
    } else for (const name of Object.keys(init)) this.#pairs.push([name, `${(init as any)[name]}`]);
  }

  /** Creates the `searchParams` of a URL. `onChange` is called with the new query after each change. */
  static of(query: string, onChange: (query: string) => void): URLSearchParams {
    const params = new URLSearchParams(query);
    params.#onChange = onChange;
    return params;
  }

  #set(pairs: [string, string][]): void {
    this.#pairs = pairs;
    this.#onChange(this.toString());
  }

  /** Called when the `search` of the URL was set. */
  replace(query: string): void {
    this.#pairs = parseQuery(query);
  }

  get size(): number {
    return this.#pairs.length;
  }

  append(name: string, value: string): void {
    this.#set([...this.#pairs, [`${name}`, `${value}`]]);
  }

  delete(name: string, value?: string): void {
    this.#set(this.#pairs.filter(([n, v]) => n !== `${name}` || (value !== undefined && v !== `${value}`)));
  }

  get(name: string): string | null {
    return this.#pairs.find(([n]) => n === `${name}`)?.[1] ?? null;
  }

  getAll(name: string): string[] {
    return this.#pairs.filter(([n]) => n === `${name}`).map(([, value]) => value);
  }

  has(name: string, value?: string): boolean {
    return this.#pairs.some(([n, v]) => n === `${name}` && (value === undefined || v === `${value}`));
  }

  set(name: string, value: string): void {
    const at = this.#pairs.findIndex(([n]) => n === `${name}`);
    if (at < 0) return this.append(name, value);
    this.#set(
      this.#pairs
        .filter(([n], i) => n !== `${name}` || i === at)
        .map((pair, i): [string, string] => i === at ? [pair[0], `${value}`] : pair),
    );
  }

  sort(): void {
    this.#set([...this.#pairs].sort(([a], [b]) => a < b ? -1 : a > b ? 1 : 0));
  }

  forEach(callback: (value: string, name: string, params: URLSearchParams) => void): void {
    for (const [name, value] of this.#pairs) callback(value, name, this);
  }

  *entries(): Generator<[string, string]> {
    for (const [name, value] of this.#pairs) yield [name, value];
  }

  *keys(): Generator<string> {
    for (const [name] of this.#pairs) yield name;
  }

  *values(): Generator<string> {
    for (const [, value] of this.#pairs) yield value;
  }

  [Symbol.iterator](): Generator<[string, string]> {
    return this.entries();
  }

  toString(): string {
    return this.#pairs.map(([name, value]) => `${formEncode(name)}=${formEncode(value)}`).join("&");
  }
}

function parseQuery(query: string): [string, string][] {
  const text = query[0] === "?" ? query.slice(1) : query;
  return text.split("&").filter(Boolean).map((pair): [string, string] => {
    const at = pair.indexOf("=");
    return at < 0 ? [formDecode(pair), ""] : [formDecode(pair.slice(0, at)), formDecode(pair.slice(at + 1))];
  });
}

function formDecode(text: string): string {
  const spaced = text.replaceAll("+", " ");
  if (!spaced.includes("%")) return spaced;
  return spaced.replace(/(?:%[0-9a-fA-F]{2})+/g, (run) => {
    const bytes = Uint8Array.from(run.slice(1).split("%"), (hex) => parseInt(hex, 16));
    return new TextDecoder().decode(bytes);
  });
}

function formEncode(text: string): string {
  return encodeURIComponent(text.toWellFormed())
    .replace(/[!'()~]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)
    .replaceAll("%20", "+");
}

class URL {
  #parts!: Record<string, string>;
  #params: URLSearchParams;

  constructor(url: unknown, base?: unknown) {
    const parts = callHost("parse", `${url}`, base === undefined ? "" : `${base}`);
    if (!parts) throw new TypeError(`Invalid URL: '${url}'`);
    this.#parts = parse(parts);
    this.#params = URLSearchParams.of(this.#parts.search, (query) => this.#set("search", query));
  }

  static canParse(url: unknown, base?: unknown): boolean {
    return callHost("parse", `${url}`, base === undefined ? "" : `${base}`) !== "";
  }

  static parse(url: unknown, base?: unknown): URL | null {
    return URL.canParse(url, base) ? new URL(url, base) : null;
  }

  /** Sets a part. Invalid values are ignored, except for `href`. */
  #set(part: string, value: unknown): void {
    const parts = callHost(part, this.#parts.href, `${value}`);
    if (!parts && part === "href") throw new TypeError(`Invalid URL: '${value}'`);
    if (parts) this.#parts = parse(parts);
  }

  get href(): string {
    return this.#parts.href;
  }
  set href(value: unknown) {
    this.#set("href", value);
    this.#params.replace(this.#parts.search);
  }

  get origin(): string {
    return this.#parts.origin;
  }

  get searchParams(): URLSearchParams {
    return this.#params;
  }

  toString(): string {
    return this.href;
  }

  toJSON(): string {
    return this.href;
  }

  static {
    for (const part of PARTS) {
      Object.defineProperty(URL.prototype, part, {
        configurable: true,
        enumerable: true,
        get(this: URL) {
          return this.#parts[part];
        },
        set(this: URL, value: unknown) {
          this.#set(part, value);
          if (part === "search") this.#params.replace(this.#parts.search);
        },
      });
    }
  }
}

defineGlobalClass("URL", URL);
defineGlobalClass("URLSearchParams", URLSearchParams);
