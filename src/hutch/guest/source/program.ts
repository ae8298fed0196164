/** Programs: guest source as one function, with a map from positions in it to positions in the source. */

import { withoutInternalFrames } from "./stack.ts";

export interface Position {
  line: number;
  column: number;
}

export class GuestSyntaxError extends Error {
  /**
   * `needsCompiler` is true if the source may be TypeScript that needs more than the removal of its types.
   */
  constructor(readonly reason: string, readonly at?: Position, readonly needsCompiler = false) {
    super(at ? `${reason} (${at.line}:${at.column})` : reason);
  }

  /** Returns the message, with the hint if the source may need a compiler. */
  withHint(hint: string): string {
    return this.needsCompiler
      ? new GuestSyntaxError(`${this.reason}; ${hint}`, this.at).message
      : this.message;
  }
}

export interface SourceError {
  reason: string;
  at?: Position;
}

/** Text that was inserted into a line after a column, counted from 0. */
export type Insertion = [line: number, column: number, length: number];

/** For every line, the columns, from 0, at which the offset to the original column changes. */
export type Columns = [generated: number, original: number][][];

/** JSON form of a program, for another process. */
export interface ProgramData {
  code: string;
  prefixLength: number;
  lineCount: number;
  insertions: Insertion[];
  columns?: Columns;
  sourceError?: SourceError;
}

/** File name of guest code in stack traces. */
export const FILE = "guest.js";
/**
 * Matches frames of guest code, which V8 and QuickJS format differently. Frames of modules, for which Deno
 * creates a blob URL, match MODULE_FRAME.
 */
const FRAME = /guest\.js(?:, <anonymous>)?:(\d+):(\d+)/;
/** Frame of a function that an earlier turn of a session has declared. */
const TURN_FRAME = /turn-(\d{1,15})\.js:(\d+):\d+/;
const MODULE_FRAME = /blob:null\/[\w-]+:(\d+):(\d+)/;
/** Frame of a function without a name, which V8 calls `eval`. */
const UNNAMED_FRAME = /^(\s*at (?:async )?)(?:<anonymous>|eval) \((.*)\)$/;
/** Function of a frame in a stack trace. */
const FRAME_FUNCTION = /^\s*at (?:async )?([^()]+) \(/;
type FindLoop = (code: string, offset: number, name?: string) => number | undefined;
const MAX_FRAMES = 20;
const MAX_FRAME_NAME = 100;
const MAX_COLUMN = 2 ** 31 - 1;

export class Program {
  /**
   * `code` evaluates to the function to call; its first `prefixLength` characters are not the guest's. With a
   * `sourceError`, `code` is instead a TypeScript module whose default export is the function; if Deno cannot
   * compile it either, the `sourceError` is reported.
   */
  constructor(
    readonly code: string,
    readonly prefixLength: number,
    readonly lineCount: number,
    readonly insertions: () => Insertion[],
    readonly columns: () => Columns | undefined,
    readonly sourceError?: SourceError,
    readonly file = FILE,
  ) {}

  /** Returns a program whose frames have another file name in the stack traces of QuickJS. */
  inFile(file: string): Program {
    const { code, prefixLength, lineCount, insertions, columns, sourceError } = this;
    return new Program(code, prefixLength, lineCount, insertions, columns, sourceError, file);
  }

  static fromData({ code, prefixLength, lineCount, insertions, columns, sourceError }: ProgramData): Program {
    return new Program(code, prefixLength, lineCount, () => insertions, () => columns, sourceError);
  }

  data(): ProgramData {
    const { code, prefixLength, lineCount, sourceError } = this;
    const insertions = this.insertions();
    return { code, prefixLength, lineCount, insertions, columns: this.columns(), sourceError };
  }

  /** Returns a stack trace as the guest sees it: without internal frames, with positions in its source. */
  cleanStack(stack: string): string {
    const pattern = this.#framePattern(), insertions = this.insertions();
    return withoutInternalFrames(stack).split("\n").map((text) => {
      const frame = pattern.exec(text);
      if (!frame) return text;
      const { line, column } = this.locate(Number(frame[1]), Number(frame[2]), insertions);
      return text.replace(frame[0], `${FILE}:${line}:${column}`).replace(UNNAMED_FRAME, "$1$2");
    }).join("\n");
  }

  /**
   * Returns the stack of an interruption with the position of the interrupted loop instead of the last
   * position before it, if that loop is found; see `interruptedLoop`.
   */
  atLoop(stack: string, findLoop: FindLoop): string {
    const [first] = stack.split("\n", 1), frame = this.#framePattern().exec(first);
    if (!frame) return stack;
    const line = Number(frame[1]), lines = this.code.split("\n", line);
    const before = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
    // The position of the guest's function is at the beginning of the prefix.
    const offset = Math.max(before + Number(frame[2]) - 1, this.prefixLength);
    const name = FRAME_FUNCTION.exec(first)?.[1];
    const loop = findLoop(this.code, offset, name === "<anonymous>" ? undefined : name);
    if (loop === undefined) return stack;
    const loopLines = this.code.slice(0, loop).split("\n");
    const position = `:${loopLines.length}:${loopLines.at(-1)!.length + 1}`;
    return stack.replace(frame[0], frame[0].replace(/:\d+:\d+$/, position));
  }

  #framePattern(): RegExp {
    if (this.file !== FILE) return new RegExp(`${RegExp.escape(this.file)}:(\\d+):(\\d+)`);
    return this.sourceError ? MODULE_FRAME : FRAME;
  }

  /** Returns the position of the innermost guest frame in a clean stack trace. */
  locateStack(stack: string | undefined): Partial<Position> {
    const frame = FRAME.exec(stack ?? "");
    return frame ? this.#bounded(frame) : {};
  }

  /** Returns the guest's frames of a clean stack trace, one per line. */
  describeStack(stack: string | undefined): string | undefined {
    const frames: string[] = [];
    for (const text of (stack ?? "").split("\n")) {
      const frame = FRAME.exec(text), earlier = frame ? null : TURN_FRAME.exec(text);
      if (!frame && !earlier) continue;
      if (frames.length === MAX_FRAMES) break;
      const name = FRAME_FUNCTION.exec(text)?.[1].slice(0, MAX_FRAME_NAME);
      const where = frame ? this.#describe(frame) : `turn ${earlier![1]}, line ${earlier![2].slice(0, 9)}`;
      frames.push(name ? `at ${name} (${where})` : `at ${where}`);
    }
    return frames.length ? frames.join("\n") : undefined;
  }

  #describe(frame: RegExpExecArray): string {
    const { line, column } = this.#bounded(frame);
    return `line ${line}, column ${column}`;
  }

  /** Limits the line and the column, because a guest can forge the numbers in a stack trace. */
  #bounded([, line, column]: RegExpExecArray): Position {
    return { line: Math.min(Number(line), this.lineCount), column: Math.min(Number(column), MAX_COLUMN) };
  }

  /** Maps a position in `code` to the source as its author wrote it. */
  locate(line: number, column: number, insertions = this.insertions()): Position {
    // Positions in the code that follows the guest's code become the last line of the guest's code.
    if (line > this.lineCount) return { line: this.lineCount, column: 1 };
    if (line === 1) column -= this.prefixLength;
    for (const [insertedLine, insertedColumn, length] of insertions) {
      if (insertedLine === line && column - 1 > insertedColumn) column -= length;
    }
    return { line, column: Math.max(1, originalColumn(this.columns(), line, column)) };
  }
}

/** Maps a column, counted from 1, to its column in the original. */
export function originalColumn(columns: Columns | undefined, line: number, column: number): number {
  const token = columns?.[line - 1]?.findLast(([generated]) => generated < column);
  return token ? token[1] + column - token[0] : column;
}
