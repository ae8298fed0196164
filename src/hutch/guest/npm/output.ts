/** A tool's output as JSON text: what JSON.stringify gives, or an error that says where it cannot. */

import { messageOf, ToolFault } from "./fault.ts";
import { exceeds, tooLarge } from "../json.ts";

const { stringify } = JSON;
const { isArray } = Array;
const { keys } = Object;
const { apply } = Reflect;

const WHAT = "The output";

/** `undefined` is null, as in a list. A bare function has no JSON, which nobody wants to learn as a null. */
export function toOutput(value: unknown, maxBytes = Infinity): string {
  const text = written(value, "output", maxBytes);
  if (text !== undefined) return text;
  if (typeof value === "function" || typeof value === "symbol") {
    throw new ToolFault("serialization_error", `output: is a ${typeof value}`);
  }
  return "null";
}

function written(value: unknown, path: string, maxBytes: number): string | undefined {
  let text: string | undefined;
  try {
    text = stringify(value);
  } catch (error) {
    if (error instanceof RangeError && error.message === "Invalid string length") {
      throw tooLarge(WHAT, maxBytes);
    }
    throw new ToolFault("serialization_error", reason(value, path, error));
  }
  if (text !== undefined && exceeds(text, maxBytes)) throw tooLarge(WHAT, maxBytes);
  return text;
}

/** Looks for what JSON.stringify could not write, the way it goes itself. */
function reason(value: unknown, path: string, error: unknown): string {
  try {
    const found = culprit("", value, path, []);
    if (found) return found;
  } catch {
    // A `toJSON` or a getter that throws, or a nesting that takes more stack than there is.
  }
  return `${path}: ${error instanceof RangeError ? "nests too deeply" : messageOf(error)}`;
}

interface Seen {
  value: object;
  path: string;
}

function culprit(key: string, value: unknown, path: string, above: Seen[]): string | undefined {
  const toJSON = value === null || value === undefined ? undefined : (value as any).toJSON;
  if (typeof toJSON === "function" && (typeof value === "object" || typeof value === "bigint")) {
    value = apply(toJSON, value, [key]);
  }
  if (typeof value === "bigint") return `${path}: is a BigInt`;
  if (typeof value !== "object" || value === null) return undefined;
  for (const seen of above) {
    if (seen.value === value) return `${path}: refers back to ${seen.path}`;
  }
  const below = [...above, { value, path }];
  for (const name of isArray(value) ? value.keys() : keys(value)) {
    const found = culprit(String(name), (value as any)[name], `${path}${step(name)}`, below);
    if (found) return found;
  }
}

function step(name: string | number): string {
  if (typeof name === "number") return `[${name}]`;
  return /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name) ? `.${name}` : `[${stringify(name)}]`;
}

/** What a tool gives bit by bit, or undefined for what it gives at once. */
export function asIterator(value: unknown): AsyncIterator<unknown> | Iterator<unknown> | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const many = value as Partial<AsyncGenerator & Generator>;
  if (typeof many[Symbol.asyncIterator] === "function") return many[Symbol.asyncIterator]!();
  // Lists and maps have iterators too, but are none.
  if (typeof many.next === "function" && typeof many[Symbol.iterator] === "function") {
    return many[Symbol.iterator]!();
  }
}

/** The list of all values as JSON text; each is written, and told to `partial`, when it comes. */
export async function collect(
  values: AsyncIterator<unknown> | Iterator<unknown>,
  partial: (json: string) => Promise<void> | void,
  maxBytes = Infinity,
): Promise<string> {
  const texts: string[] = [];
  let length = 2;
  for (let next = await values.next(); !next.done; next = await values.next()) {
    const text = written(await next.value, `output[${texts.length}]`, maxBytes) ?? "null";
    length += text.length + 1;
    if (length - 1 > maxBytes) throw tooLarge(WHAT, maxBytes);
    texts.push(text);
    await partial(text);
  }
  const all = `[${texts.join(",")}]`;
  if (exceeds(all, maxBytes)) throw tooLarge(WHAT, maxBytes);
  return all;
}
