/** Encodes a tool's output as JSON. Errors name the path of the value that cannot be encoded. */

import { messageOf, ToolError } from "./errors.ts";
import { exceeds, tooLarge } from "../json.ts";

const { stringify } = JSON;
const { isArray } = Array;
const { keys } = Object;
const { apply } = Reflect;

const LABEL = "The output";

/** Encodes `undefined` as null, like JSON.stringify does in an array. Throws for a function or a symbol. */
export function toOutput(value: unknown, maxBytes = Infinity): string {
  const text = stringifyBounded(value, "output", maxBytes);
  if (text !== undefined) return text;
  if (typeof value === "function" || typeof value === "symbol") {
    throw new ToolError("serialization_error", `output: is a ${typeof value}`);
  }
  return "null";
}

function stringifyBounded(value: unknown, path: string, maxBytes: number): string | undefined {
  let text: string | undefined;
  try {
    text = stringify(value);
  } catch (error) {
    if (error instanceof RangeError && error.message === "Invalid string length") {
      throw tooLarge(LABEL, maxBytes);
    }
    throw new ToolError("serialization_error", explainFailure(value, path, error));
  }
  if (text !== undefined && exceeds(text, maxBytes)) throw tooLarge(LABEL, maxBytes);
  return text;
}

/** Finds the value that JSON.stringify failed on, by visiting the values in the same order. */
function explainFailure(value: unknown, path: string, error: unknown): string {
  try {
    const found = findInvalid("", value, path, []);
    if (found) return found;
  } catch {
    // A `toJSON` or a getter threw, or the value is nested too deeply. Report the error of JSON.stringify.
  }
  return `${path}: ${error instanceof RangeError ? "nests too deeply" : messageOf(error)}`;
}

interface Ancestor {
  value: object;
  path: string;
}

function findInvalid(key: string, value: unknown, path: string, ancestors: Ancestor[]): string | undefined {
  const toJSON = value === null || value === undefined ? undefined : (value as any).toJSON;
  if (typeof toJSON === "function" && (typeof value === "object" || typeof value === "bigint")) {
    value = apply(toJSON, value, [key]);
  }
  if (typeof value === "bigint") return `${path}: is a BigInt`;
  if (typeof value !== "object" || value === null) return undefined;
  for (const ancestor of ancestors) {
    if (ancestor.value === value) return `${path}: refers back to ${ancestor.path}`;
  }
  const parents = [...ancestors, { value, path }];
  for (const name of isArray(value) ? value.keys() : keys(value)) {
    const found = findInvalid(String(name), (value as any)[name], `${path}${step(name)}`, parents);
    if (found) return found;
  }
}

function step(name: string | number): string {
  if (typeof name === "number") return `[${name}]`;
  return /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name) ? `.${name}` : `[${stringify(name)}]`;
}

/** Returns the iterator of a generator or an async iterable, and undefined for all other values. */
export function asIterator(value: unknown): AsyncIterator<unknown> | Iterator<unknown> | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const generator = value as Partial<AsyncGenerator & Generator>;
  if (typeof generator[Symbol.asyncIterator] === "function") return generator[Symbol.asyncIterator]!();
  // Check for `next`, which generators have, but arrays and maps do not.
  if (typeof generator.next === "function" && typeof generator[Symbol.iterator] === "function") {
    return generator[Symbol.iterator]!();
  }
}

/** Returns the JSON text of an array of all values. Calls `partial` with the JSON text of each. */
export async function collect(
  values: AsyncIterator<unknown> | Iterator<unknown>,
  partial: (json: string) => Promise<void> | void,
  maxBytes = Infinity,
): Promise<string> {
  const texts: string[] = [];
  let length = 2;
  for (let next = await values.next(); !next.done; next = await values.next()) {
    const text = stringifyBounded(await next.value, `output[${texts.length}]`, maxBytes) ?? "null";
    length += text.length + 1;
    if (length - 1 > maxBytes) throw tooLarge(LABEL, maxBytes);
    texts.push(text);
    await partial(text);
  }
  const json = `[${texts.join(",")}]`;
  if (exceeds(json, maxBytes)) throw tooLarge(LABEL, maxBytes);
  return json;
}
