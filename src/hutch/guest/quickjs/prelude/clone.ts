/** `structuredClone` for the types of the language, with cycles. */

import { defineGlobal } from "./define.ts";

const ERRORS: Record<string, ErrorConstructor> = {
  EvalError,
  RangeError,
  ReferenceError,
  SyntaxError,
  TypeError,
  URIError,
};

function refuse(value: unknown): never {
  const text = typeof value === "function" ? `function ${value.name}` : String(value);
  throw new DOMException(`${text} could not be cloned`, "DataCloneError");
}

function clone(value: any, seen: Map<object, unknown>): unknown {
  if (typeof value === "function" || typeof value === "symbol") refuse(value);
  if (typeof value !== "object" || value === null) return value;
  if (seen.has(value)) return seen.get(value);
  const remember = <T>(copy: T): T => {
    seen.set(value, copy);
    return copy;
  };
  if (Array.isArray(value)) {
    const copy = remember(new Array(value.length));
    for (const key of Object.keys(value)) copy[key as any] = clone(value[key as any], seen);
    return copy;
  }
  if (value instanceof Date) return remember(new Date(value.getTime()));
  if (value instanceof RegExp) return remember(new RegExp(value.source, value.flags));
  if (value instanceof ArrayBuffer) return remember(value.slice(0));
  if (ArrayBuffer.isView(value)) return remember(cloneView(value, seen));
  if (value instanceof Map) {
    const copy = remember(new Map());
    for (const [key, member] of value) copy.set(clone(key, seen), clone(member, seen));
    return copy;
  }
  if (value instanceof Set) {
    const copy = remember(new Set());
    for (const member of value) copy.add(clone(member, seen));
    return copy;
  }
  if (value instanceof Error) {
    const copy = remember(new (ERRORS[value.name] ?? Error)(value.message));
    if ("cause" in value) copy.cause = clone(value.cause, seen);
    Object.defineProperty(copy, "stack", { value: value.stack, writable: true, configurable: true });
    return copy;
  }
  for (const Box of [Boolean, Number, String]) {
    if (value instanceof Box) return remember(Object(value.valueOf()));
  }
  for (const Kind of [WeakMap, WeakSet, WeakRef, Promise]) if (value instanceof Kind) refuse(value);
  const copy: Record<string, unknown> = remember({});
  for (const key of Object.keys(value)) {
    Object.defineProperty(copy, key, {
      value: clone(value[key], seen),
      writable: true,
      enumerable: true,
      configurable: true,
    });
  }
  return copy;
}

function cloneView(view: any, seen: Map<object, unknown>): unknown {
  const buffer = clone(view.buffer, seen) as ArrayBuffer;
  const length = view instanceof DataView ? view.byteLength : view.length;
  return new view.constructor(buffer, view.byteOffset, length);
}

defineGlobal("structuredClone", (value: unknown) => clone(value, new Map()));
