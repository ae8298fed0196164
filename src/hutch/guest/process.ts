/** What runners do alike that have a process to themselves; taken before guest code can replace it. */

const { stringify } = JSON;
const { apply } = Reflect;
const { writeSync } = Deno.stdout;
const encoder = new TextEncoder();
const { encode } = encoder;

/**
 * Says a line of the console at once, for the case that this process is killed before it can say `done`;
 * null says that one was left out or clipped.
 */
export function echo(line: string | null): void {
  apply(writeSync, Deno.stdout, [apply(encode, encoder, [`\x1e${stringify(line)}\n`])]);
}
