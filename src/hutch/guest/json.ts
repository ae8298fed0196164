/**
 * Strict JSON encoding: null, booleans, finite numbers, strings, arrays and plain objects.
 *
 * Runs in the guest's realm, so it captures the built-ins that it needs before guest code can replace them.
 */

const { getPrototypeOf, keys, prototype: objectPrototype } = Object;
const { isArray } = Array;
const { isFinite: isFiniteNumber } = Number;
const { stringify } = JSON;
const { apply } = Reflect;
const { charCodeAt, indexOf, slice, startsWith } = String.prototype;
const { exec, test } = RegExp.prototype;
const NOT_ASCII = /[^\0-\x7f]/;
/** Matches a line of a stack trace that is a frame, in V8 and in QuickJS. */
const FRAME = /^ +at /;
/** Matches a frame of the runner, of Deno or of a built-in. */
const INTERNAL_FRAME = /[ (](?:(?:prelude|deno)\.js[:,]|(?:ext|node):|native\)|<anonymous>\)$)/;

/** Hints for values that are not JSON-safe. */
const HINTS: Record<string, string> = {
  "__proto__": null as never,
  "an instance of Promise": "did you forget await?",
  "an instance of Date": "use .toISOString()",
  "an instance of Map": "use Object.fromEntries(map)",
  "an instance of Set": "use [...set]",
  "an instance of Error": "use its message",
  "an instance of RegExp": "use String(value)",
  "a bigint": "use Number(value) or String(value)",
  "NaN": "use null",
};

/** Maximum nesting of a value. It is below the host's limit for the message that contains the value. */
const MAX_DEPTH = 120;

export class NotJsonSafe extends Error {
  readonly tooLarge: boolean;
  constructor(message: string, tooLarge = false) {
    super(message);
    this.tooLarge = tooLarge;
  }
}

/** State of the traversal of a value. */
interface Walk {
  readonly label: string;
  readonly maxBytes: number;
  bytesLeft: number;
  readonly ancestors: object[];
  readonly keys: (string | number)[];
}

/** Returns the JSON text of `value`, or undefined for undefined. Throws NotJsonSafe. */
export function toJson(value: unknown, label: string, maxBytes = Infinity): string | undefined {
  if (value === undefined) return undefined;
  check(value, 0, { label, maxBytes, bytesLeft: maxBytes + 1, ancestors: [], keys: [] });
  const text = stringify(value);
  if (exceeds(text, maxBytes)) throw tooLarge(label, maxBytes);
  return text;
}

/** Returns true if the text has more than `maxBytes` bytes in UTF-8. */
export function exceeds(text: string, maxBytes: number): boolean {
  if (text.length > maxBytes || 3 * text.length <= maxBytes) return text.length > maxBytes;
  return byteLength(text) > maxBytes;
}

/**
 * Sets a native function that counts the UTF-8 bytes of a text. The loop below takes QuickJS 20 s for 4 MiB.
 */
export function provideByteLength(native: (text: string) => number): void {
  byteLength = native;
}

let byteLength = (text: string): number => {
  if (!apply(test, NOT_ASCII, [text])) return text.length;
  let bytes = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = apply(charCodeAt, text, [i]);
    // A surrogate pair takes four bytes, two for each of its units.
    if (unit >= 0x80) bytes += unit < 0x800 || (unit >= 0xd800 && unit < 0xe000) ? 1 : 2;
  }
  return bytes;
};

export function tooLarge(label: string, maxBytes: number): NotJsonSafe {
  return new NotJsonSafe(`${label} is too large: its JSON text has more than ${maxBytes} bytes`, true);
}

function check(value: unknown, depth: number, walk: Walk): void {
  // Check the length here, because shared references can make the JSON of a small value very long. Every
  // value takes at least a character and a comma.
  walk.bytesLeft -= typeof value === "string" ? value.length + 2 : 2;
  if (walk.bytesLeft < 0) throw tooLarge(walk.label, walk.maxBytes);
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
  const { ancestors, keys: path } = walk;
  if (depth >= MAX_DEPTH) refuse(`nested deeper than ${MAX_DEPTH} levels`, 8, walk);
  for (let i = 0; i < depth; i++) if (ancestors[i] === value) refuse("a cycle", depth, walk);
  ancestors[depth] = value;
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
      walk.bytesLeft -= name.length + 3;
      check(member, depth + 1, walk);
    }
  }
}

function refuse(found: string, depth: number, { label, keys: path }: Walk): never {
  let at = "";
  for (let i = 0; i < depth; i++) at += typeof path[i] === "number" ? `[${path[i]}]` : `.${path[i]}`;
  const hint = HINTS[found];
  throw new NotJsonSafe(
    `${label} is not JSON-safe: ${found}${at ? ` at ${at}` : ""}${hint ? `; ${hint}` : ""}`,
  );
}

function describe(value: unknown): string {
  if (typeof value === "object" && value !== null) {
    const name = value.constructor?.name;
    return typeof name === "string" && name ? `an instance of ${name}` : "an object that is not plain";
  }
  return value === undefined ? "undefined" : `a ${typeof value}`;
}

/** Formats a value for a log line: strings unchanged, other values as JSON if possible. */
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

/** Formats an error with the guest's frames of its stack. V8 puts the error's text before the frames. */
function withFrames(error: Error): string {
  const text = `${error}`, { stack } = error;
  if (typeof stack !== "string") return text;
  let output = text, inFrames = false;
  for (let at = apply(startsWith, stack, [text]) ? text.length : 0, end; at < stack.length; at = end + 1) {
    end = apply(indexOf, stack, ["\n", at]);
    if (end < 0) end = stack.length;
    const line: string = apply(slice, stack, [at, end]);
    const isFrame = apply(exec, FRAME, [line]) !== null;
    inFrames ||= isFrame;
    if (inFrames && line && !(isFrame && apply(exec, INTERNAL_FRAME, [line]))) output += `\n${line}`;
  }
  return output;
}
