/** `Event`, `EventTarget`, `AbortSignal` and `AbortController`. */

import { defineGlobalClass } from "./define.ts";

type Listener = ((event: Event) => void) | { handleEvent(event: Event): void };

class Event {
  readonly type: string;
  target: EventTarget | null = null;
  readonly cancelable: boolean;
  defaultPrevented = false;
  stopped = false;

  constructor(type: string, init: { cancelable?: boolean } = {}) {
    this.type = `${type}`;
    this.cancelable = Boolean(init.cancelable);
  }

  get currentTarget(): EventTarget | null {
    return this.target;
  }

  preventDefault(): void {
    if (this.cancelable) this.defaultPrevented = true;
  }

  stopImmediatePropagation(): void {
    this.stopped = true;
  }
}

class EventTarget {
  #listeners: { type: string; listener: Listener; once: boolean }[] = [];

  addEventListener(type: string, listener: Listener | null, options?: { once?: boolean } | boolean): void {
    if (!listener || this.#listeners.some((entry) => entry.type === type && entry.listener === listener)) {
      return;
    }
    const once = typeof options === "object" && options !== null && Boolean(options.once);
    this.#listeners.push({ type, listener, once });
  }

  removeEventListener(type: string, listener: Listener | null): void {
    this.#listeners = this.#listeners.filter((entry) => entry.type !== type || entry.listener !== listener);
  }

  dispatchEvent(event: Event): boolean {
    event.target = this;
    const handler = (this as any)[`on${event.type}`];
    if (typeof handler === "function") handler.call(this, event);
    for (const { type, listener, once } of [...this.#listeners]) {
      if (type !== event.type || event.stopped) continue;
      if (once) this.removeEventListener(type, listener);
      if (typeof listener === "function") listener.call(this, event);
      else listener.handleEvent(event);
    }
    return !event.defaultPrevented;
  }
}

const CONSTRUCTOR_KEY = Symbol("only an AbortController creates a signal");

class AbortSignal extends EventTarget {
  #aborted = false;
  #reason: unknown = undefined;
  onabort: ((event: Event) => void) | null = null;

  constructor(key?: symbol) {
    super();
    if (key !== CONSTRUCTOR_KEY) throw new TypeError("Illegal constructor: use AbortController");
  }

  get aborted(): boolean {
    return this.#aborted;
  }

  get reason(): unknown {
    return this.#reason;
  }

  throwIfAborted(): void {
    if (this.#aborted) throw this.#reason;
  }

  static trigger(signal: AbortSignal, reason: unknown): void {
    if (signal.#aborted) return;
    signal.#aborted = true;
    signal.#reason = reason === undefined
      ? new DOMException("The operation was aborted", "AbortError")
      : reason;
    signal.dispatchEvent(new Event("abort"));
  }

  static abort(reason?: unknown): AbortSignal {
    const signal = new AbortSignal(CONSTRUCTOR_KEY);
    trigger(signal, reason);
    return signal;
  }

  static timeout(milliseconds: number): AbortSignal {
    const signal = new AbortSignal(CONSTRUCTOR_KEY);
    setTimeout(() => trigger(signal, new DOMException("The signal timed out", "TimeoutError")), milliseconds);
    return signal;
  }

  static any(signals: Iterable<AbortSignal>): AbortSignal {
    const sources = [...signals], combined = new AbortSignal(CONSTRUCTOR_KEY);
    const aborted = sources.find((signal) => signal.aborted);
    if (aborted) trigger(combined, aborted.reason);
    else {for (const signal of sources) {
        signal.addEventListener("abort", () => trigger(combined, signal.reason), { once: true });
      }}
    return combined;
  }
}

const { trigger } = AbortSignal;
delete (AbortSignal as any).trigger;

class AbortController {
  readonly signal = new AbortSignal(CONSTRUCTOR_KEY);

  abort(reason?: unknown): void {
    trigger(this.signal, reason);
  }
}

defineGlobalClass("Event", Event);
defineGlobalClass("EventTarget", EventTarget);
defineGlobalClass("AbortSignal", AbortSignal);
defineGlobalClass("AbortController", AbortController);
