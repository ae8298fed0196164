/** `Event`, `EventTarget`, `AbortSignal` and `AbortController`. */

import { hideClass } from "./hide.ts";

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
    if (!listener || this.#listeners.some((each) => each.type === type && each.listener === listener)) return;
    const once = typeof options === "object" && options !== null && Boolean(options.once);
    this.#listeners.push({ type, listener, once });
  }

  removeEventListener(type: string, listener: Listener | null): void {
    this.#listeners = this.#listeners.filter((each) => each.type !== type || each.listener !== listener);
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

const SECRET = Symbol("only a controller makes a signal");

class AbortSignal extends EventTarget {
  #aborted = false;
  #reason: unknown = undefined;
  onabort: ((event: Event) => void) | null = null;

  constructor(key?: symbol) {
    super();
    if (key !== SECRET) throw new TypeError("Illegal constructor: use AbortController");
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
    const signal = new AbortSignal(SECRET);
    trigger(signal, reason);
    return signal;
  }

  static timeout(milliseconds: number): AbortSignal {
    const signal = new AbortSignal(SECRET);
    setTimeout(() => trigger(signal, new DOMException("The signal timed out", "TimeoutError")), milliseconds);
    return signal;
  }

  static any(signals: Iterable<AbortSignal>): AbortSignal {
    const all = [...signals], either = new AbortSignal(SECRET);
    const first = all.find((signal) => signal.aborted);
    if (first) trigger(either, first.reason);
    else {for (const signal of all) {
        signal.addEventListener("abort", () => trigger(either, signal.reason), { once: true });
      }}
    return either;
  }
}

const { trigger } = AbortSignal;
delete (AbortSignal as any).trigger;

class AbortController {
  readonly signal = new AbortSignal(SECRET);

  abort(reason?: unknown): void {
    trigger(this.signal, reason);
  }
}

hideClass("Event", Event);
hideClass("EventTarget", EventTarget);
hideClass("AbortSignal", AbortSignal);
hideClass("AbortController", AbortController);
