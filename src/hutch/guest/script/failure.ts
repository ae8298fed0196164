/** Formats the error of a script for its author: without frames of the runner and with original positions. */

const { inspect } = Deno;

/** Frames of the runner, of Deno, and of the generated main file. */
const INTERNAL_FRAME = /^\s*at .*(?:\bscript\.js[:,]|\bentry\.js[:,]|\bext:|\.hutch-main\.js:)/;
const MAX_CAUSES = 5;

/** The line of the script into which `by` characters were inserted before the column `from`. */
export type Shift = readonly [line: number, from: number, by: number];

export interface ScriptLocation {
  /** Folder of the script's files, which is removed from the text. */
  folder: string;
  main: string;
  shift: Shift | null;
}

export function formatError(error: unknown, { folder, main, shift }: ScriptLocation): string {
  const parts: string[] = [];
  for (let current = error; parts.length < MAX_CAUSES; current = (current as Error).cause) {
    parts.push(current instanceof Error ? formatOne(current) : formatValue(current));
    if (!(current instanceof Error) || current.cause === undefined) break;
  }
  const text = parts.join("\nCaused by: ").replaceAll(`file://${folder}/`, "");
  if (!shift) return text;
  const [line, from, by] = shift, place = `${main}:${line}:`;
  return text.split(place).map((part, index) => {
    const column = Number.parseInt(part);
    return index && column >= from ? part.replace(String(column), String(column - by)) : part;
  }).join(place);
}

function formatOne(error: Error): string {
  const lines = `${error.stack ?? error}`.split("\n").filter((line) => !INTERNAL_FRAME.test(line));
  const { details } = error as Error & { details?: unknown };
  if (details !== undefined && details !== null) lines.push(`    details: ${inspect(details)}`);
  return lines.join("\n");
}

function formatValue(value: unknown): string {
  return typeof value === "string" ? value : inspect(value);
}
