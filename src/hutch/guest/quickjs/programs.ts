/** Makes the program of an execution from its code. */

import { prepareTransform, prepareWrapper } from "../source/ability_source.ts";
import type { Program } from "../source/program.ts";
import { prepare, prepareForDeno } from "../source/source.ts";
import type { Execute, Outcome } from "../wire.ts";
import { prepareTurn } from "./turn_source.ts";

export const DEFAULT_MAX_RESULT = 8 * 1024 * 1024;

export type Result = Pick<Outcome, "ok" | "result" | "error">;

export function programOf({ code, job, turn }: Execute): Program {
  if (turn) return prepareTurn(code, turn.number);
  if (job?.form === "prepare") return prepareForDeno(code);
  if (job?.form === "wrapper") return prepareWrapper(code);
  return job?.form === "transform" ? prepareTransform(code) : prepare(code);
}

export function programResult({ options }: Execute, program: Program): Result {
  const result = JSON.stringify(program.data()), maxBytes = options.maxResultBytes ?? DEFAULT_MAX_RESULT;
  if (byteLength(result, maxBytes) <= maxBytes) return { ok: true, result };
  const message = `The program is too large: its JSON text has more than ${maxBytes} bytes`;
  return { ok: false, error: { code: "result_too_large", message } };
}

/**
 * Returns the length of a text in UTF-8 bytes. If a text with this many characters cannot exceed `maxBytes`,
 * returns the number of characters instead, which is faster and may be less than the number of bytes.
 */
export function byteLength(text: string, maxBytes: number): number {
  return 3 * text.length <= maxBytes ? text.length : new TextEncoder().encode(text).length;
}
