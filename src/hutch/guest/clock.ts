/** Clock and timer that load no further part of Deno. Captured before guest code can replace them. */

const { apply } = Reflect;
const { now } = performance;
const { timeout } = AbortSignal;

export function clock(): number {
  return apply(now, performance, []);
}

/** Like `setTimeout`, whose first use spends 15 ms on loading Node's timers. */
export function runAfter(ms: number, action: () => void): void {
  apply(timeout, AbortSignal, [Math.min(ms, 2 ** 31 - 1)]).addEventListener("abort", action);
}
