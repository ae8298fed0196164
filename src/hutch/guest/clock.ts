/**
 * A clock and a timer that need no further modules of Deno. This module captures the built-ins that it needs
 * before guest code can replace them.
 */

const { apply } = Reflect;
const { now } = performance;
const { timeout } = AbortSignal;

export function clock(): number {
  return apply(now, performance, []);
}

/** Replaces `setTimeout`, because the first call of `setTimeout` takes 15 ms to load Node's timers. */
export function runAfter(ms: number, action: () => void): void {
  apply(timeout, AbortSignal, [Math.min(ms, 2 ** 31 - 1)]).addEventListener("abort", action);
}
