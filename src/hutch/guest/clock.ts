/** Time, without what Deno would have to load for it first; taken before guest code can replace it. */

const { apply } = Reflect;
const { now } = performance;
const { timeout } = AbortSignal;

export function clock(): number {
  return apply(now, performance, []);
}

/** As `setTimeout` does, whose first use loads 15 ms of Node. */
export function after(ms: number, action: () => void): void {
  apply(timeout, AbortSignal, [Math.min(ms, 2 ** 31 - 1)]).addEventListener("abort", action);
}
