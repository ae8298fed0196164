/** Timers: the runner keeps the time, the callbacks stay here. */

import { hide } from "./hide.ts";
import { armTimer, disarmTimer } from "./host.ts";

const MAX_TIMERS = 10_000;

interface Timer {
  callback: (...args: unknown[]) => void;
  args: unknown[];
  repeat: boolean;
}

const timers: Record<number, Timer> = Object.create(null);
let last = 0, armed = 0;

function set(callback: unknown, delay: unknown, args: unknown[], repeat: boolean): number {
  if (typeof callback !== "function") throw new TypeError("A timer's callback must be a function");
  if (armed >= MAX_TIMERS) throw new RangeError(`More than ${MAX_TIMERS} timers at once`);
  const id = ++last;
  timers[id] = { callback: callback as Timer["callback"], args, repeat };
  armed++;
  armTimer(id, Math.max(repeat ? 1 : 0, Math.min(Number(delay) || 0, 2 ** 31 - 1)), repeat ? 1 : 0);
  return id;
}

function clear(id: unknown): void {
  if (typeof id !== "number" || !(id in timers)) return;
  delete timers[id];
  armed--;
  disarmTimer(id);
}

/** Runs the callback of a timer that is due. */
export function due(id: number): void {
  const timer = timers[id];
  if (!timer) return;
  if (!timer.repeat) {
    delete timers[id];
    armed--;
  }
  timer.callback(...timer.args);
}

hide(
  "setTimeout",
  (callback: unknown, delay?: unknown, ...args: unknown[]) => set(callback, delay, args, false),
);
hide(
  "setInterval",
  (callback: unknown, delay?: unknown, ...args: unknown[]) => set(callback, delay, args, true),
);
hide("clearTimeout", (id: unknown) => clear(id));
hide("clearInterval", (id: unknown) => clear(id));
