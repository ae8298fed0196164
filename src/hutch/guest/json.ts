/**
 * JSON-safe values, strictly: null, booleans, finite numbers, strings, arrays and plain objects.
 *
 * Used by both engines, in the guest's own realm, so it keeps hold of what it needs before guest code runs.
 */

const { getPrototypeOf, keys, prototype: objectPrototype } = Object;
const { isArray } = Array;
const { isFinite: isFiniteNumber } = Number;
const { stringify } = JSON;

/** One less than what the host takes for a whole message, which wraps the value. */
const MAX_DEPTH = 120;

export class NotJsonSafe extends Error {
  readonly tooLarge: boolean;
  constructor(message: string, tooLarge = false) {
    super(message);
    this.tooLarge = tooLarge;
  }
}

/** JSON text of `value`, or undefined for undefined; throws NotJsonSafe that says where and what. */
export function toJson(value: unknown, what: string, maxChars = Infinity): string | undefined {
  if (value === undefined) return undefined;
  const budget = { left: maxChars };
  check(value, "", what, 0, [], budget);
  const text = stringify(value);
  if (text.length > maxChars) throw tooLarge(what, maxChars);
  return text;
}

function tooLarge(what: string, maxChars: number): NotJsonSafe {
  return new NotJsonSafe(`${what} is too large: its JSON text has more than ${maxChars} characters`, true);
}

function check(
  value: unknown,
  path: string,
  what: string,
  depth: number,
  above: unknown[],
  budget: { left: number },
): void {
  // Shared references can make a small value long; every visit costs at least one character of JSON.
  if (--budget.left < 0) throw tooLarge(what, 0);
  switch (typeof value) {
    case "string":
      budget.left -= value.length;
      return;
    case "boolean":
      return;
    case "number":
      if (!isFiniteNumber(value)) refuse(`${value}`, path, what);
      return;
    case "object":
      if (value !== null) checkObject(value, path, what, depth, above, budget);
      return;
    default:
      refuse(describe(value), path, what);
  }
}

function checkObject(
  value: object,
  path: string,
  what: string,
  depth: number,
  above: unknown[],
  budget: { left: number },
): void {
  if (depth >= MAX_DEPTH) refuse(`nested deeper than ${MAX_DEPTH} levels`, path.slice(0, 40), what);
  for (let i = 0; i < depth; i++) if (above[i] === value) refuse("a cycle", path, what);
  above[depth] = value;
  if (isArray(value)) {
    for (let i = 0; i < value.length; i++) {
      check(value[i], `${path}[${i}]`, what, depth + 1, above, budget);
    }
  } else {
    const prototype = getPrototypeOf(value);
    if (prototype !== objectPrototype && prototype !== null) refuse(describe(value), path, what);
    for (const key of keys(value)) {
      const member = (value as Record<string, unknown>)[key];
      budget.left -= key.length;
      if (member !== undefined) check(member, `${path}.${key}`, what, depth + 1, above, budget);
    }
  }
}

function refuse(found: string, path: string, what: string): never {
  throw new NotJsonSafe(`${what} is not JSON-safe: ${found}${path ? ` at ${path}` : ""}`);
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
    if (value instanceof Error) return value.stack ? `${value}\n${value.stack}`.trimEnd() : `${value}`;
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
