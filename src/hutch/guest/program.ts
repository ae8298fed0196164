/** What guest source becomes: one function, and where in the source each place in it came from. */

export interface Position {
  line: number;
  column: number;
}

export class GuestSyntaxError extends Error {
  /** `isBeyond`: it may be TypeScript that takes a compiler. */
  constructor(readonly reason: string, readonly at?: Position, readonly isBeyond = false) {
    super(at ? `${reason} (${at.line}:${at.column})` : reason);
  }

  /** The message, with a word about who has such a compiler. */
  hinted(hint: string): string {
    return this.isBeyond ? new GuestSyntaxError(`${this.reason}; ${hint}`, this.at).message : this.message;
  }
}

/** What there is to say against a source. */
export interface Refusal {
  reason: string;
  at?: Position;
}

/** What was inserted into a line of the source behind a column, counted from 0: so many characters. */
export type Moved = [line: number, behind: number, by: number];

/** For every line the columns, from 0, at which something was moved, and what they were in the original. */
export type Columns = [at: number, was: number][][];

/** A program as JSON, for another process to run. */
export interface ProgramData {
  code: string;
  opening: number;
  lines: number;
  moved: Moved[];
  columns?: Columns;
  refusal?: Refusal;
}

/** Guest code is evaluated under this name; V8 and QuickJS write its frames differently. */
export const FILE = "guest.js";
const FRAME = /guest\.js(?:, <anonymous>)?:(\d+):(\d+)/;
/** A module has the address that Deno made for it. */
const MODULE_FRAME = /blob:null\/[\w-]+:(\d+):(\d+)/;

export class Program {
  /**
   * `code` evaluates to the function to call. It begins with `opening` characters that are ours. With a `refusal`
   * it is a TypeScript module that has the function by default; that holds if it is none for Deno either.
   */
  constructor(
    readonly code: string,
    readonly opening: number,
    readonly lines: number,
    readonly moved: () => Moved[],
    readonly columns: () => Columns | undefined,
    readonly refusal?: Refusal,
  ) {}

  static of({ code, opening, lines, moved, columns, refusal }: ProgramData): Program {
    return new Program(code, opening, lines, () => moved, () => columns, refusal);
  }

  data(): ProgramData {
    const { code, opening, lines, refusal } = this;
    return { code, opening, lines, moved: this.moved(), columns: this.columns(), refusal };
  }

  /** The innermost of the guest's own lines in a stack. */
  lineOf(stack: string | undefined): Partial<Position> {
    const frame = (this.refusal ? MODULE_FRAME : FRAME).exec(stack ?? "");
    return frame ? this.locate(Number(frame[1]), Number(frame[2])) : {};
  }

  /** Where a position in `code` is in what the guest's author wrote. */
  locate(line: number, column: number): Position {
    // A guest can write any number into a stack.
    if (line > this.lines) return { line: this.lines, column: 1 };
    if (line === 1) column -= this.opening;
    for (const [on, behind, by] of this.moved()) {
      if (on === line && column - 1 > behind) column -= by;
    }
    return { line, column: Math.max(1, original(this.columns(), line, column)) };
  }
}

/** What column of the original a column, from 1, was. */
export function original(columns: Columns | undefined, line: number, column: number): number {
  const token = columns?.[line - 1]?.findLast(([at]) => at < column);
  return token ? token[1] + column - token[0] : column;
}
