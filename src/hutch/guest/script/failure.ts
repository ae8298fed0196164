/** An error as a script's author wants to read it: its own lines, and none of ours. */

const { inspect } = Deno;

/** Frames of the runner, of Deno's inside, and of the file that begins a script. */
const OURS = /^\s*at .*(?:\bscript\.js[:,]|\bentry\.js[:,]|\bext:|\.hutch-main\.js:)/;
const MOST_CAUSES = 5;

/** The line of the script whose columns moved when it was made runnable, from which one on, and by how many. */
export type Shift = readonly [line: number, from: number, by: number];

export interface Whereabouts {
  /** Where the script's files are, which is nothing to its author. */
  folder: string;
  main: string;
  shift: Shift | null;
}

export function describe(error: unknown, { folder, main, shift }: Whereabouts): string {
  const parts: string[] = [];
  for (let each = error; parts.length < MOST_CAUSES; each = (each as Error).cause) {
    parts.push(each instanceof Error ? one(each) : readable(each));
    if (!(each instanceof Error) || each.cause === undefined) break;
  }
  const text = parts.join("\nCaused by: ").replaceAll(`file://${folder}/`, "");
  if (!shift) return text;
  const [line, from, by] = shift, place = `${main}:${line}:`;
  return text.split(place).map((part, index) => {
    const column = Number.parseInt(part);
    return index && column >= from ? part.replace(String(column), String(column - by)) : part;
  }).join(place);
}

function one(error: Error): string {
  const lines = `${error.stack ?? error}`.split("\n").filter((line) => !OURS.test(line));
  const { details } = error as Error & { details?: unknown };
  if (details !== undefined && details !== null) lines.push(`    details: ${inspect(details)}`);
  return lines.join("\n");
}

function readable(value: unknown): string {
  return typeof value === "string" ? value : inspect(value);
}
