/** Errors of scripts for their authors: stack traces with original positions, and the text of an error. */

import { withoutInternalFrames } from "../source/stack.ts";

const { inspect } = Deno;

const MAX_CAUSES = 5;

/** Matches the position at the end of the line of a frame. */
const POSITION = /^(\s*at .*?)(\d+):(\d+)(\)?)$/;

/** Line of the script in which `by` characters were inserted before the column `from`. */
export type Shift = readonly [line: number, from: number, by: number];

export interface ScriptLocation {
  /** Folder of the script's files, which is removed from the text. */
  folder: string;
  main: string;
  /** Lines of the original script. */
  lineCount: number;
  shift: Shift | null;
}

export function formatError(error: unknown): string {
  const parts: string[] = [];
  for (let current = error; parts.length < MAX_CAUSES; current = (current as Error).cause) {
    parts.push(current instanceof Error ? formatOne(current) : formatValue(current));
    if (!(current instanceof Error) || current.cause === undefined) break;
  }
  return parts.join("\nCaused by: ");
}

/** Returns a stack trace without internal frames, with the names and positions of the script's own files. */
export function cleanStack(stack: string, location: ScriptLocation): string {
  const { folder } = location;
  const text = withoutInternalFrames(stack).replaceAll(`file://${folder}/`, "").replaceAll(`${folder}/`, "");
  return text.split("\n").map((line) => originalFrame(line, location)).filter((line) => line !== undefined)
    .join("\n");
}

/** Returns a frame with its position in the original script, or undefined if it is in inserted code. */
function originalFrame(text: string, { main, lineCount, shift }: ScriptLocation): string | undefined {
  const frame = POSITION.exec(text);
  if (!shift || !frame) return text;
  const [, before, line, column, after] = frame, [shiftedLine, from, by] = shift;
  if (!before.endsWith(` ${main}:`) && !before.endsWith(`(${main}:`)) return text;
  if (Number(line) > lineCount) return undefined;
  if (Number(line) !== shiftedLine) return text;
  return Number(column) < from ? undefined : `${before}${line}:${Number(column) - by}${after}`;
}

function formatOne(error: Error): string {
  const lines = [`${error.stack ?? error}`];
  const { details } = error as Error & { details?: unknown };
  if (details !== undefined && details !== null) lines.push(`    details: ${inspect(details)}`);
  return lines.join("\n");
}

function formatValue(value: unknown): string {
  return typeof value === "string" ? value : inspect(value);
}
