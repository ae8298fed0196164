/** Timers: the runner runs them, and their callbacks are stored here. */

import { defineGlobal } from "./define.ts";
import { startTimer, stopTimer } from "./host.ts";

const MAX_TIMERS = 10_000;

interface Timer {
  callback: (...args: unknown[]) => void;
  args: unknown[];
  repeat: boolean;
}

const { create, keys } = Object;
const timers: Record<number, Timer> = create(null);
let lastId = 0, active = 0;

function set(callback: unknown, delay: unknown, args: unknown[], repeat: boolean): number {
  if (typeof callback !== "function") throw new TypeError("A timer's callback must be a function");
  if (active >= MAX_TIMERS) throw new RangeError(`More than ${MAX_TIMERS} timers at once`);
  const id = ++lastId;
  timers[id] = { callback: callback as Timer["callback"], args, repeat };
  active++;
  startTimer(id, Math.max(repeat ? 1 : 0, Math.min(Number(delay) || 0, 2 ** 31 - 1)), repeat ? 1 : 0);
  return id;
}

function clear(id: unknown): void {
  if (typeof id !== "number" || !(id in timers)) return;
  delete timers[id];
  active--;
  stopTimer(id);
}

/** Drops all timers at the end of a session's turn. */
export function dropTimers(): void {
  const ids = keys(timers);
  for (let i = 0; i < ids.length; i++) delete timers[ids[i] as unknown as number];
  active = 0;
}

export function fireTimer(id: number): void {
  const timer = timers[id];
  if (!timer) return;
  if (!timer.repeat) {
    delete timers[id];
    active--;
  }
  timer.callback(...timer.args);
}

defineGlobal(
  "setTimeout",
  (callback: unknown, delay?: unknown, ...args: unknown[]) => set(callback, delay, args, false),
);
defineGlobal(
  "setInterval",
  (callback: unknown, delay?: unknown, ...args: unknown[]) => set(callback, delay, args, true),
);
defineGlobal("clearTimeout", (id: unknown) => clear(id));
defineGlobal("clearInterval", (id: unknown) => clear(id));
