/**
 * Writes the log lines of runners whose guest shares their process. The functions used here are captured
 * before guest code can replace them.
 */

const { stringify } = JSON;
const { apply } = Reflect;
const { writeSync } = Deno.stdout;
const encoder = new TextEncoder();
const { encode } = encoder;

/**
 * Writes a log line to stdout immediately, in case the process is killed before it sends `done`. `null` tells
 * the host that lines were dropped or truncated.
 */
export function echoLine(line: string | null): void {
  apply(writeSync, Deno.stdout, [apply(encode, encoder, [`\x1e${stringify(line)}\n`])]);
}
