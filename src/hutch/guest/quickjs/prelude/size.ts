/** Approximate sizes of values in QuickJS's memory. */

import { isProxy } from "./host.ts";

const { getOwnPropertyDescriptor, getPrototypeOf } = Object;
const { apply, ownKeys } = Reflect;
const { pop, push } = Array.prototype;
const { add, has } = Set.prototype;
const { forEach: forEachEntry } = Map.prototype;
const { forEach: forEachItem } = Set.prototype;
const { get: bufferLength } = getOwnPropertyDescriptor(ArrayBuffer.prototype, "byteLength")!;
const { get: viewLength } = getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), "byteLength")!;
const OrdinarySet = Set;
const LATIN1 = /^[\0-\xff]*$/;
const { test } = RegExp.prototype;

const VALUE_BYTES = 8, OBJECT_BYTES = 48, PROPERTY_BYTES = 16, ENTRY_BYTES = 48, STRING_BYTES = 24;
/** Maximum number of objects that `sizeOf` counts. */
const MAX_OBJECTS = 100_000;

/** Returns the bytes of a value and of everything that it refers to. Runs no code of the guest. */
export function sizeOf(value: unknown): number {
  const seen = new OrdinarySet<unknown>(), waiting: unknown[] = [value];
  let bytes = 0, objects = 0;
  while (waiting.length > 0) {
    const next = apply(pop, waiting, []);
    bytes += VALUE_BYTES;
    if (typeof next === "string") {
      bytes += STRING_BYTES + next.length * (apply(test, LATIN1, [next]) ? 1 : 2);
    }
    if ((typeof next !== "object" && typeof next !== "function") || next === null) continue;
    if (apply(has, seen, [next])) continue;
    apply(add, seen, [next]);
    if (++objects > MAX_OBJECTS) break;
    bytes += OBJECT_BYTES + contentBytes(next, waiting);
  }
  return bytes;
}

/** Appends the values in an object to `waiting`, and returns the size of the object without these values. */
function contentBytes(object: object, waiting: unknown[]): number {
  if (isProxy(object) === 1) return 0;
  const bytes = tryRead(() => apply(bufferLength!, object, [])) ??
    tryRead(() => apply(viewLength!, object, []));
  if (bytes !== undefined) return bytes as number;
  let size = 0;
  const addEntry = (value: unknown, key: unknown) => {
    apply(push, waiting, [key, value]);
    size += ENTRY_BYTES;
  };
  tryRead(() => apply(forEachEntry, object, [addEntry]));
  tryRead(() => apply(forEachItem, object, [(value: unknown) => addEntry(value, undefined)]));
  const keys = ownKeys(object);
  for (let i = 0; i < keys.length; i++) {
    const descriptor = getOwnPropertyDescriptor(object, keys[i]);
    size += PROPERTY_BYTES;
    if (descriptor && "value" in descriptor) apply(push, waiting, [descriptor.value]);
  }
  return size;
}

/**
 * Returns the result of `read`, or undefined if `read` throws because it calls a method on an object of
 * another class.
 */
function tryRead(read: () => unknown): unknown {
  try {
    return read();
  } catch {
    return undefined;
  }
}
