/**
 * Functions that call the host's tools, and the conversion of guest errors; shared by the engines.
 *
 * Runs in the guest's realm, so it captures the built-ins that it needs before guest code can replace them.
 */

import { NotJsonSafe, toJson } from "./json.ts";

const { parse, stringify } = JSON;
const { defineProperty, create, keys } = Object;
const { apply } = Reflect;
const { get: weakGet, set: weakSet } = WeakMap.prototype;
const { shift, push } = Array.prototype;
const { includes } = Array.prototype;
const { indexOf, slice } = String.prototype;
const CallSite = Error;

/** Maximum number of open calls. Further calls are queued, so that `Promise.all` over many items works. */
const MAX_OUTSTANDING = 128;
/** Maximum number of queued calls that record where they were made. */
const MAX_CALL_SITES = 1_000;
const UNREADABLE = "The guest threw a value that cannot be read";

/**
 * `tool` is the index of the tool among those of all providers. `stack` contains the position of the call; it
 * is empty if positions are not sent.
 */
export type Emit = (call: number, tool: number, input: string, stack: string) => void;

/** Namespaces, the names of their tools, and the names of those that stream. */
export type ProviderTools = [name: string, tools: string[], streaming?: string[]][];

interface PendingCall {
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
  /** Error with which the call is rejected if it fails. Its stack contains the position of the call. */
  error?: Error;
  stream?: ItemStream;
}

interface CallOptions {
  maxInputBytes?: number;
  /**
   * Returns the stack of a call, given the error that was created for its failure. The function is absent if
   * positions are not sent, because formatting a stack takes longer than many calls.
   */
  callStack?: (failure: Error) => string | undefined;
}

export interface ErrorInfo {
  code: string;
  message: string;
  name?: string;
  stack?: string;
}

/** Returns true if a value is a Proxy. The engine provides this function, because JavaScript cannot tell. */
let isProxy: (value: object) => boolean = () => false;

export function provideProxyCheck(check: (value: object) => boolean): void {
  isProxy = check;
}

/**
 * Details of errors that the guest did not create, by error object. The guest can change the object, but not
 * these details.
 */
const trustedErrors = new WeakMap<object, ErrorInfo>();
const pending: Record<number, PendingCall> = create(null);
const backlog: (() => void)[] = [];
let lastCallId = 0, outstanding = 0;

function trustedError(code: string, message: string, error: Error = new CallSite()): Error {
  defineProperty(error, "message", { value: message, writable: true, configurable: true });
  defineProperty(error, "code", { value: code, writable: true, configurable: true, enumerable: true });
  apply(weakSet, trustedErrors, [error, errorInfo(code, message)]);
  return error;
}

/**
 * Returns the stack of the current call in V8. Creates a separate error for this. Reading the stack of the
 * call's own error now would fix the text of its stack before its message is known, because V8 formats a
 * stack only once.
 */
export function currentStack(): string | undefined {
  return stackOf(new CallSite());
}

/**
 * Returns the stack of an error, or undefined if the guest has replaced the formatting of stacks by code that
 * throws.
 */
function stackOf(error: Error): string | undefined {
  return readText(() => error.stack);
}

export function createToolFunction(
  name: string,
  tool: number,
  emit: Emit,
  { maxInputBytes, callStack }: CallOptions = {},
  streams = false,
): (input?: unknown) => Promise<unknown> {
  const label = `The input of ${name}`;
  return (input) => {
    // Record the positions of a limited number of queued calls, because their stack traces would use up the
    // memory.
    const failure = backlog.length < MAX_CALL_SITES ? new CallSite() : undefined;
    const stack = callStack && failure && callStack(failure) || "";
    const stream = streams ? new ItemStream() : undefined;
    const result = new Promise((resolve, reject) => {
      let text: string;
      try {
        text = toJson(input, label, maxInputBytes) ?? "null";
      } catch (error) {
        if (!(error instanceof NotJsonSafe)) throw error;
        return reject(trustedError("serialization_error", error.message, failure));
      }
      startCall(resolve, reject, (id) => emit(id, tool, text, stack), failure, stream);
    });
    return stream ? stream.attachTo(result) : result;
  };
}

/** Items of a streaming tool: all of them as a promise, or one by one as an async iterable. */
class ItemStream {
  readonly items: unknown[] = [];
  #wake: (() => void)[] = [];
  #result?: Promise<unknown>;
  #isOver = false;

  attachTo(result: Promise<unknown>): Promise<unknown> {
    this.#result = result;
    const end = () => this.#end();
    result.then(end, end);
    return defineProperty(result, Symbol.asyncIterator, { value: () => this.#iterate() });
  }

  add(item: unknown): void {
    apply(push, this.items, [item]);
    this.#notify();
  }

  #end(): void {
    this.#isOver = true;
    this.#notify();
  }

  #notify(): void {
    const waiting = this.#wake;
    this.#wake = [];
    for (let i = 0; i < waiting.length; i++) waiting[i]();
  }

  async *#iterate(): AsyncGenerator<unknown> {
    for (let i = 0;; i++) {
      while (i >= this.items.length && !this.#isOver) {
        await new Promise<void>((resolve) => apply(push, this.#wake, [resolve]));
      }
      // After the last item, end, or throw the error of the call.
      if (i >= this.items.length) return void await this.#result;
      yield this.items[i];
    }
  }
}

/**
 * Starts a call, or queues it while too many are open. Calls `emit` with the number of the call, which is
 * also an argument of `settle`.
 */
export function startCall(
  resolve: (value: unknown) => void,
  reject: (error: unknown) => void,
  emit: (call: number) => void,
  error?: Error,
  stream?: ItemStream,
): void {
  const begin = () => {
    outstanding++;
    const id = ++lastCallId;
    pending[id] = { resolve, reject, error, stream };
    emit(id);
  };
  if (outstanding < MAX_OUTSTANDING) begin();
  else apply(push, backlog, [begin]);
}

/**
 * Defines each namespace as a global. A namespace with a dotted name, such as `tools.github`, becomes a
 * member of the object before the dot. Namespaces have no prototype, so that a tool can have any name.
 * Returns the number of tools.
 */
export function defineProviders(providers: ProviderTools, emit: Emit, options: CallOptions): number {
  let count = 0;
  const parents: Record<string, object> = create(null);
  for (let i = 0; i < providers.length; i++) {
    const [name, tools, streaming = []] = providers[i];
    const namespace = parents[name] ?? create(null);
    for (let j = 0; j < tools.length; j++) {
      const streams = apply(includes, streaming, [tools[j]]) as boolean;
      const value = createToolFunction(`${name}.${tools[j]}`, count++, emit, options, streams);
      defineProperty(namespace, tools[j], { value, enumerable: true });
    }
    const dot = apply(indexOf, name, ["."]), parent = dot < 0 ? "" : apply(slice, name, [0, dot]);
    if (parent && !(parent in parents)) defineGlobal(parent, parents[parent] = create(null));
    if (!parent) defineGlobal(name, parents[name] = namespace);
    else {defineProperty(parents[parent], apply(slice, name, [dot + 1]), {
        value: namespace,
        enumerable: true,
      });}
  }
  return count;
}

/** Defines the inputs of the execution as globals. */
export function defineInputs(inputs: Record<string, unknown>): void {
  for (const name of keys(inputs)) defineGlobal(name, inputs[name]);
}

function defineGlobal(name: string, value: unknown): void {
  defineProperty(globalThis, name, { value, writable: true, configurable: true });
}

/** Drops all calls at the end of a session's turn, because their results will not arrive. */
export function dropCalls(): void {
  const ids = keys(pending);
  for (let i = 0; i < ids.length; i++) delete pending[ids[i] as unknown as number];
  backlog.length = outstanding = 0;
}

/** Adds an item to the result of a streaming call. */
export function addItem(id: number, text: string): void {
  pending[id]?.stream?.add(parse(text));
}

/** Settles a call with the JSON text of its result or error. */
export function settle(id: number, ok: boolean, text: string): void {
  const call = pending[id];
  if (!call) return;
  delete pending[id];
  outstanding--;
  if (backlog.length > 0) (apply(shift, backlog, []) as () => void)();
  if (ok) return call.resolve(call.stream ? call.stream.items : parse(text));
  const { code, message } = parse(text);
  call.reject(trustedError(code, message, call.error));
}

/**
 * Converts an uncaught error. Errors of the host keep their code; all others are `runtime_error`.
 *
 * Never throws: reading a thrown value can run code of the guest, and if that throws, the execution must still
 * end. A Proxy is not read at all, because its traps need not return.
 */
export function describeError(error: unknown): ErrorInfo {
  if (((typeof error === "object" && error !== null) || typeof error === "function") && isProxy(error)) {
    return errorInfo("runtime_error", "The guest threw a Proxy");
  }
  try {
    return describeReadable(error);
  } catch {
    return errorInfo("runtime_error", UNREADABLE);
  }
}

function describeReadable(error: unknown): ErrorInfo {
  if (error instanceof NotJsonSafe) {
    return errorInfo(error.tooLarge ? "result_too_large" : "serialization_error", error.message);
  }
  if (typeof error === "object" && error !== null) {
    const trusted: ErrorInfo | undefined = apply(weakGet, trustedErrors, [error]);
    // Format the stack only here, because that takes longer than the call, and most errors of tools are
    // caught.
    if (trusted) return { ...trusted, __proto__: null, stack: stackOf(error as Error) } as ErrorInfo;
  }
  if (error instanceof Error) {
    const message = readText(() => error.message) ?? UNREADABLE;
    return errorInfo("runtime_error", message, readText(() => error.name), stackOf(error));
  }
  return errorInfo("runtime_error", typeof error === "string" ? error : toText(error));
}

/** Returns the text of a property, or undefined if reading it throws. */
function readText(read: () => unknown): string | undefined {
  try {
    return `${read()}`;
  } catch {
    return undefined;
  }
}

/**
 * Returns the fields of an error in a message. The object has no prototype, so that a guest cannot give it a
 * `toJSON`.
 */
function errorInfo(code: string, message: string, name?: string, stack?: string): ErrorInfo {
  return { __proto__: null, code, message, name, stack } as ErrorInfo;
}

function toText(value: unknown): string {
  try {
    return stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}
