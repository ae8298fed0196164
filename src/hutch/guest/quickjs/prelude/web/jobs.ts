/** Jobs for abilities: calls a wrapper or a transform, or computes the values of headers. */

import { exceeds, tooLarge } from "../../../json.ts";
import { createToolFunction, type ProviderTools } from "../../../tools.ts";
import { toolCall } from "../host.ts";
import { type FetchTools, provideFetchTools } from "./fetch.ts";
import { type HeaderPair, headerPairs, Headers } from "./headers.ts";
import { heldId } from "./response.ts";

const { parse, stringify } = JSON;
const evaluate = eval;

/** Globals that transforms do not have. */
const ONLY_FOR_WRAPPERS = ["fetch", "Request", "Response", "Headers", "Buffer", "process"];

/** Keeps these objects alive, because freeing them would take longer than most transforms. */
const retained = [...ONLY_FOR_WRAPPERS.map((name) => (globalThis as any)[name]), (crypto as any).subtle];

type Program = (module?: unknown, exports?: unknown) => Promise<unknown>;

/** Returns the JSON text of the result. */
export async function runJob(
  form: string,
  program: Program,
  providers: string,
  input: string,
  maxBytes: number,
): Promise<string> {
  const value = parse(input);
  if (form === "wrapper") {
    provideFetchTools(fetchTools(parse(providers), maxBytes));
    return toBoundedJson(await runWrapper(program, value), maxBytes);
  }
  for (let i = 0; i < retained.length - 1; i++) delete (globalThis as any)[ONLY_FOR_WRAPPERS[i]];
  delete (crypto as any).subtle;
  const result = form === "transform" ? await runTransform(program, value) : await headerValues(value);
  return toBoundedJson(result, maxBytes);
}

function toBoundedJson(value: unknown, maxBytes: number): string {
  const text = stringify(value) ?? "null";
  if (exceeds(text, maxBytes)) throw tooLarge("The result", maxBytes);
  return text;
}

/** Creates functions for the host's tools; only `fetch` gets them. */
function fetchTools([[provider, names]]: ProviderTools, maxBytes: number): FetchTools {
  const functions: Record<string, unknown> = {};
  names.forEach((name, index) => {
    functions[name] = createToolFunction(`${provider}.${name}`, index, toolCall, { maxInputBytes: maxBytes });
  });
  return functions as unknown as FetchTools;
}

async function runWrapper(program: Program, input: { payload: unknown; options: unknown }): Promise<unknown> {
  const module = { exports: {} };
  const wrapper = await program(module, module.exports);
  if (typeof wrapper !== "function") return { missing: true };
  const returned = await wrapper(input.payload, input.options);
  if (isResponse(returned)) return await describeResponse(returned);
  return isPlainData(returned) ? { status: 200, data: returned } : { returned: describeValue(returned) };
}

function isResponse(value: any): boolean {
  return (typeof value === "object" || typeof value === "function") && value !== null &&
    typeof value.status === "number" && typeof value.headers?.forEach === "function" &&
    typeof value.text === "function";
}

/** Returns false for values that JSON omits, and for instances of classes, most of which JSON makes empty. */
function isPlainData(value: any): boolean {
  if (typeof value !== "object" || value === null) {
    return value === null || ["string", "number", "boolean"].includes(typeof value);
  }
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype || Array.isArray(value) ||
    typeof value.toJSON === "function";
}

/** Converts a response for the host. Without the body if the guest has not read it, because the host has it. */
async function describeResponse(response: any): Promise<unknown> {
  const headers = pairsOf(response.headers);
  const head = { status: response.status, statusText: `${response.statusText ?? ""}`, headers };
  const held = heldId(response);
  return held === null ? { ...head, text: `${await response.text()}` } : { ...head, held };
}

function pairsOf(headers: any): HeaderPair[] {
  if (headers instanceof Headers) return headerPairs(headers);
  const pairs: HeaderPair[] = [];
  headers.forEach((value: unknown, name: unknown) => pairs.push([`${name}`, `${value}`]));
  return pairs;
}

function describeValue(value: any): string {
  if (value === null || value === undefined) return `${value}`;
  if (Array.isArray(value)) return "an array";
  if (typeof value !== "object") return `a ${typeof value}`;
  const name = value.constructor?.name;
  return typeof name === "string" && name && name !== "Object" ? `an instance of ${name}` : "a plain object";
}

async function runTransform(program: Program, data: unknown): Promise<unknown> {
  const transform = await program();
  if (typeof transform !== "function") throw new TypeError("Transform code must be a function");
  return await transform(data);
}

/** Evaluates the codes. Returns for each code its value (null if it has none) or the name of its error. */
async function headerValues(codes: string[]): Promise<unknown[]> {
  const results: unknown[] = [];
  for (const code of codes) {
    try {
      const value = await evaluate(`(${code}\n)`)();
      results.push({ value: value === undefined || value === null ? null : `${value}` });
    } catch (error: any) {
      results.push({ error: typeof error?.name === "string" ? error.name : "Error" });
    }
  }
  return results;
}
