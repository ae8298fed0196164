/**
 * The host's tools as the guest sees them, and what a guest's error becomes: the same in both engines.
 *
 * Runs in the guest's realm, so it keeps hold of what it needs before guest code can replace it.
 */

import { NotJsonSafe, toJson } from "./json.ts";

const { parse, stringify } = JSON;
const { defineProperty, create } = Object;
const { apply } = Reflect;
const { get: weakGet, set: weakSet } = WeakMap.prototype;
const { shift, push } = Array.prototype;
const Trace = Error;

/** Calls beyond this wait their turn, so that `Promise.all` over many items just works. */
const MAX_OUTSTANDING = 128;
/** Calls that wait and know where they were made. */
const MOST_PLACES = 1_000;

/** `tool` counts through all providers' tools, in the order in which they were lent. */
export type Emit = (call: number, tool: number, input: string) => void;

/** Namespaces and the names of their tools. */
export type Lent = [name: string, tools: string[]][];

interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
  /** Knows where the call is. */
  from?: Error;
}

export interface Fault {
  code: string;
  message: string;
  name?: string;
  stack?: string;
}

interface Trusted {
  fault: Fault;
  from?: Error;
}

/** Errors that did not come from the guest, by the object that carries each: writing on it changes nothing. */
const trusted = new WeakMap<object, Trusted>();
const waiting: Record<number, Waiting> = create(null);
const backlog: (() => void)[] = [];
let calls = 0, outstanding = 0;

function trustedError(code: string, message: string, from?: Error): Error {
  const error = new Error(message) as Error & { code: string };
  error.code = code;
  apply(weakSet, trusted, [error, { fault: fault(code, message), from }]);
  return error;
}

/** A guest may have a say in how stacks are written. */
function stackOf(error?: Error): string | undefined {
  try {
    return error && `${error.stack}`;
  } catch {
    return undefined;
  }
}

/** A function that calls the host's tool. */
export function proxy(
  name: string,
  tool: number,
  emit: Emit,
  maxBytes?: number,
): (input?: unknown) => Promise<unknown> {
  return (input) => {
    // With very many calls at once, what they keep would be what their memory is used for.
    const from = backlog.length < MOST_PLACES ? new Trace() : undefined;
    return new Promise((resolve, reject) => {
      let text: string;
      try {
        text = toJson(input, `The input of ${name}`, maxBytes) ?? "null";
      } catch (error) {
        if (!(error instanceof NotJsonSafe)) throw error;
        return reject(trustedError("serialization_error", error.message, from));
      }
      queue(resolve, reject, (id) => emit(id, tool, text), from);
    });
  };
}

/** Begins a call under a number of its own, which `settle` ends; now, or when fewer are open. */
export function queue(
  resolve: (value: unknown) => void,
  reject: (error: unknown) => void,
  emit: (call: number) => void,
  from?: Error,
): void {
  const begin = () => {
    outstanding++;
    const id = ++calls;
    waiting[id] = { resolve, reject, from };
    emit(id);
  };
  if (outstanding < MAX_OUTSTANDING) begin();
  else apply(push, backlog, [begin]);
}

/** Defines the providers' namespaces as globals without a prototype, so that every tool's name is data. */
export function lend(providers: Lent, emit: Emit, maxInputBytes?: number): void {
  let count = 0;
  for (let i = 0; i < providers.length; i++) {
    const [name, tools] = providers[i];
    const namespace = create(null);
    for (let j = 0; j < tools.length; j++) {
      const value = proxy(`${name}.${tools[j]}`, count++, emit, maxInputBytes);
      defineProperty(namespace, tools[j], { value, enumerable: true });
    }
    defineProperty(globalThis, name, { value: namespace, writable: true, configurable: true });
  }
}

/** Delivers the host's answer to one call; `text` is JSON of the result or of the error. */
export function settle(id: number, ok: boolean, text: string): void {
  const call = waiting[id];
  if (!call) return;
  delete waiting[id];
  outstanding--;
  (apply(shift, backlog, []) as (() => void) | undefined)?.();
  if (ok) return call.resolve(parse(text));
  const { code, message } = parse(text);
  call.reject(trustedError(code, message, call.from));
}

/** What an uncaught error means: the host's own keep their code, everything else is the guest's. */
export function explain(error: unknown): Fault {
  if (error instanceof NotJsonSafe) {
    return fault(error.tooLarge ? "result_too_large" : "serialization_error", error.message);
  }
  if (typeof error === "object" && error !== null) {
    const known = apply(weakGet, trusted, [error]);
    // Not before: to write a stack takes longer than the call, and most errors of tools are caught.
    if (known) return { ...known.fault, __proto__: null, stack: stackOf(known.from) } as Fault;
  }
  if (error instanceof Error) {
    const { message, name, stack } = error;
    return fault("runtime_error", `${message}`, `${name}`, `${stack}`);
  }
  return fault("runtime_error", typeof error === "string" ? error : readable(error));
}

/** Without a prototype, so that no `toJSON` of the guest's has a say in how it is written. */
function fault(code: string, message: string, name?: string, stack?: string): Fault {
  return { __proto__: null, code, message, name, stack } as Fault;
}

function readable(value: unknown): string {
  try {
    return stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}
