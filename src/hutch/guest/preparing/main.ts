/**
 * What makes guest source a program, as a script of its own: it takes longer to load than all the rest of a
 * runner that seldom needs it. Its value is `prepared`.
 */

import { GuestSyntaxError, type ProgramData, type Refusal } from "../program.ts";
import { prepareForDeno, provideTypeScript } from "../source.ts";

/** Classes of this script are not those of who loads it: errors come as data too. */
export type Prepared = { program: ProgramData } | Refusal;

function prepared(source: string, typeScript: () => string): Prepared {
  provideTypeScript(typeScript);
  try {
    return { program: prepareForDeno(source).data() };
  } catch (error) {
    if (!(error instanceof GuestSyntaxError)) throw error;
    return { reason: error.reason, at: error.at };
  }
}

(globalThis as { __hutch_entry?: unknown }).__hutch_entry = prepared;
