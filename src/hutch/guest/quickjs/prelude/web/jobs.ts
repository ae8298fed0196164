/**
 * What is done for abilities besides running code: a wrapper is called with its payload, a transform with a
 * body, and the values of headers are made. Each is an execution of its own.
 */

import { exceeds, tooLarge } from "../../../json.ts";
import { type Lent, proxy } from "../../../tools.ts";
import { toolCall } from "../host.ts";
import { connect, type Upstream } from "./fetch.ts";
import { type HeaderPair, headerPairs, Headers } from "./headers.ts";
import { heldBy } from "./response.ts";

const { parse, stringify } = JSON;
const evaluate = eval;

/** What has no place in a transform: it computes, and no more. */
const ONLY_FOR_WRAPPERS = ["fetch", "Request", "Response", "Headers", "Buffer", "process"];

/** Held on to, because to take apart what nobody holds takes longer than most transforms. */
const kept = [...ONLY_FOR_WRAPPERS.map((name) => (globalThis as any)[name]), (crypto as any).subtle];

type Program = (module?: unknown, exports?: unknown) => Promise<unknown>;

/** JSON text of what came of it. */
export async function perform(
  form: string,
  program: Program,
  lent: string,
  input: string,
  most: number,
): Promise<string> {
  const given = parse(input);
  if (form === "wrapper") {
    connect(tools(parse(lent), most));
    return bounded(await wrapper(program, given), most);
  }
  for (let i = 0; i < kept.length - 1; i++) delete (globalThis as any)[ONLY_FOR_WRAPPERS[i]];
  delete (crypto as any).subtle;
  return bounded(form === "transform" ? await transform(program, given) : await values(given), most);
}

function bounded(value: unknown, most: number): string {
  const text = stringify(value) ?? "null";
  if (exceeds(text, most)) throw tooLarge("The result", most);
  return text;
}

/** The host's tools as functions that only `fetch` has. */
function tools([[name, names]]: Lent, most: number): Upstream {
  const all: Record<string, unknown> = {};
  names.forEach((each, at) => all[each] = proxy(`${name}.${each}`, at, toolCall, most));
  return all as unknown as Upstream;
}

async function wrapper(program: Program, given: { payload: unknown; options: unknown }): Promise<unknown> {
  const module = { exports: {} };
  const found = await program(module, module.exports);
  if (typeof found !== "function") return { missing: true };
  return await described(await found(given.payload, given.options));
}

/** A response as the host reads it; its body stays with the host if nobody has read it. */
async function described(response: any): Promise<unknown> {
  const type = typeof response;
  const isResponse = (type === "object" || type === "function") && response !== null &&
    typeof response.status === "number" && typeof response.headers?.forEach === "function" &&
    typeof response.text === "function";
  if (!isResponse) return { returned: named(response) };
  const headers = listed(response.headers);
  const head = { status: response.status, statusText: `${response.statusText ?? ""}`, headers };
  const held = heldBy(response);
  return held === null ? { ...head, text: `${await response.text()}` } : { ...head, held };
}

function listed(headers: any): HeaderPair[] {
  if (headers instanceof Headers) return headerPairs(headers);
  const pairs: HeaderPair[] = [];
  headers.forEach((value: unknown, name: unknown) => pairs.push([`${name}`, `${value}`]));
  return pairs;
}

function named(value: any): string {
  if (value === null || value === undefined) return `${value}`;
  if (Array.isArray(value)) return "an array";
  if (typeof value !== "object") return `a ${typeof value}`;
  const name = value.constructor?.name;
  return typeof name === "string" && name && name !== "Object" ? `an instance of ${name}` : "a plain object";
}

async function transform(program: Program, data: unknown): Promise<unknown> {
  const made = await program();
  if (typeof made !== "function") throw new TypeError("Transform code must be a function");
  return await made(data);
}

/** For every code the value, or what it threw; null for one that gives nothing. */
async function values(codes: string[]): Promise<unknown[]> {
  const all: unknown[] = [];
  for (const code of codes) {
    try {
      const value = await evaluate(`(${code}\n)`)();
      all.push({ value: value === undefined || value === null ? null : `${value}` });
    } catch (error: any) {
      all.push({ error: typeof error?.name === "string" ? error.name : "Error" });
    }
  }
  return all;
}
