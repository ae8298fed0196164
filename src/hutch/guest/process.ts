/** What runners do alike that have a process to themselves; taken before guest code can replace it. */

const { stringify } = JSON;
const { apply } = Reflect;
const { now } = performance;
const { timeout } = AbortSignal;
const { writeSync } = Deno.stdout;
const encoder = new TextEncoder();
const { encode } = encoder;

export function clock(): number {
  return apply(now, performance, []);
}

/** As `setTimeout` does, whose first use loads 15 ms of Node. */
export function after(ms: number, action: () => void): void {
  apply(timeout, AbortSignal, [Math.min(ms, 2 ** 31 - 1)]).addEventListener("abort", action);
}

/** Says a line of the console at once, for the case that this process is killed before it can say `done`. */
export function echo(line: string): void {
  apply(writeSync, Deno.stdout, [apply(encode, encoder, [`\x1e${stringify(line)}\n`])]);
}
