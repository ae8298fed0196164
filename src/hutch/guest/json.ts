/**
 * JSON-safe values, strictly: null, booleans, finite numbers, strings, arrays and plain objects.
 *
 * Used by both engines, in the guest's own realm, so it keeps hold of what it needs before guest code runs.
 */

const { getPrototypeOf, keys, prototype: objectPrototype } = Object;
const { isArray } = Array;
const { isFinite: isFiniteNumber } = Number;
const { stringify } = JSON;
const { apply } = Reflect;
const { charCodeAt, indexOf, slice, startsWith } = String.prototype;
const { exec, test } = RegExp.prototype;
const NOT_ASCII = /[^\0-\x7f]/;
/** A frame of a stack as both engines write it; one of ours, of Deno's or of a built-in. */
const FRAME = /^ +at /, FOREIGN = /[ (](?:(?:prelude|deno)\.js[:,]|(?:ext|node):|native\)|<anonymous>\)$)/;

/** One less than what the host takes for a whole message, which wraps the value. */
const MAX_DEPTH = 120;

export class NotJsonSafe extends Error {
  readonly tooLarge: boolean;
  constructor(message: string, tooLarge = false) {
    super(message);
    this.tooLarge = tooLarge;
  }
}

/** Where a walk through a value is, and how much it may still see. */
interface Walk {
  readonly what: string;
  readonly maxBytes: number;
  left: number;
  readonly above: object[];
  readonly keys: (string | number)[];
}

/** JSON text of `value`, or undefined for undefined; throws NotJsonSafe that says where and what. */
export function toJson(value: unknown, what: string, maxBytes = Infinity): string | undefined {
  if (value === undefined) return undefined;
  check(value, 0, { what, maxBytes, left: maxBytes + 1, above: [], keys: [] });
  const text = stringify(value);
  if (exceeds(text, maxBytes)) throw tooLarge(what, maxBytes);
  return text;
}

/** Whether a text has more bytes in UTF-8. */
export function exceeds(text: string, maxBytes: number): boolean {
  if (text.length > maxBytes || 3 * text.length <= maxBytes) return text.length > maxBytes;
  if (!apply(test, NOT_ASCII, [text])) return false;
  let bytes = text.length;
  for (let i = 0; i < text.length && bytes <= maxBytes; i++) {
    const unit = apply(charCodeAt, text, [i]);
    // Two units of a pair make four bytes.
    if (unit >= 0x80) bytes += unit < 0x800 || (unit >= 0xd800 && unit < 0xe000) ? 1 : 2;
  }
  return bytes > maxBytes;
}

export function tooLarge(what: string, maxBytes: number): NotJsonSafe {
  return new NotJsonSafe(`${what} is too large: its JSON text has more than ${maxBytes} bytes`, true);
}

function check(value: unknown, depth: number, walk: Walk): void {
  // Shared references can make a small value long. Every visit is one character of JSON, and a comma.
  walk.left -= typeof value === "string" ? value.length + 2 : 2;
  if (walk.left < 0) throw tooLarge(walk.what, walk.maxBytes);
  switch (typeof value) {
    case "string":
    case "boolean":
      return;
    case "number":
      if (!isFiniteNumber(value)) refuse(`${value}`, depth, walk);
      return;
    case "object":
      if (value !== null) checkObject(value, depth, walk);
      return;
    default:
      refuse(describe(value), depth, walk);
  }
}

function checkObject(value: object, depth: number, walk: Walk): void {
  const { above, keys: path } = walk;
  if (depth >= MAX_DEPTH) refuse(`nested deeper than ${MAX_DEPTH} levels`, 8, walk);
  for (let i = 0; i < depth; i++) if (above[i] === value) refuse("a cycle", depth, walk);
  above[depth] = value;
  if (isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      path[depth] = i;
      check(value[i], depth + 1, walk);
    }
  } else {
    const prototype = getPrototypeOf(value);
    if (prototype !== objectPrototype && prototype !== null) refuse(describe(value), depth, walk);
    const names = keys(value);
    for (let i = 0; i < names.length; i++) {
      const name = path[depth] = names[i];
      const member = (value as Record<string, unknown>)[name];
      if (member === undefined) continue;
      walk.left -= name.length + 3;
      check(member, depth + 1, walk);
    }
  }
}

function refuse(found: string, depth: number, { what, keys: path }: Walk): never {
  let at = "";
  for (let i = 0; i < depth; i++) at += typeof path[i] === "number" ? `[${path[i]}]` : `.${path[i]}`;
  const hint = found === "an instance of Promise"
    ? "; did you forget await?"
    : found === "an instance of Date"
    ? "; use .toISOString()"
    : "";
  throw new NotJsonSafe(`${what} is not JSON-safe: ${found}${at ? ` at ${at}` : ""}${hint}`);
}

function describe(value: unknown): string {
  if (typeof value === "object" && value !== null) {
    const name = value.constructor?.name;
    return typeof name === "string" && name ? `an instance of ${name}` : "an object that is not plain";
  }
  return value === undefined ? "undefined" : `a ${typeof value}`;
}

/** How a value looks in a log line: strings as they are, the rest as JSON, else something readable. */
export function toLog(value: unknown): string {
  if (typeof value === "string") return value;
  try {
    if (value instanceof Error) return withFrames(value);
    if (typeof value === "function") return `[Function: ${value.name || "anonymous"}]`;
    if (typeof value === "bigint") return `${value}n`;
    if (value instanceof Map) return `Map(${value.size}) ${toLog([...value])}`;
    if (value instanceof Set) return `Set(${value.size}) ${toLog([...value])}`;
    return stringify(value) ?? String(value);
  } catch {
    try {
      return String(value);
    } catch {
      return "[unprintable]";
    }
  }
}

/** An error, then the guest's own frames of its stack; what V8 has above these is the error once more. */
function withFrames(error: Error): string {
  const text = `${error}`, { stack } = error;
  if (typeof stack !== "string") return text;
  let shown = text, begun = false;
  for (let at = apply(startsWith, stack, [text]) ? text.length : 0, end; at < stack.length; at = end + 1) {
    end = apply(indexOf, stack, ["\n", at]);
    if (end < 0) end = stack.length;
    const line: string = apply(slice, stack, [at, end]);
    const isFrame = apply(exec, FRAME, [line]) !== null;
    begun ||= isFrame;
    if (begun && line && !(isFrame && apply(exec, FOREIGN, [line]))) shown += `\n${line}`;
  }
  return shown;
}
