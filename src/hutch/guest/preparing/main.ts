/**
 * What makes guest source a program, as a script of its own: it takes longer to load than all the rest of a
 * runner that seldom needs it. Its value is `prepared`.
 */

import { GuestSyntaxError, type Position, type ProgramData } from "../program.ts";
import { prepare, provideTypeScript } from "../source.ts";

/** Classes of this script are not those of who loads it: errors come as data too. */
export type Prepared = { program: ProgramData } | { reason: string; at?: Position };

function prepared(source: string, typeScript: () => string): Prepared {
  provideTypeScript(typeScript);
  try {
    return { program: prepare(source).data() };
  } catch (error) {
    if (!(error instanceof GuestSyntaxError)) throw error;
    return { reason: error.reason, at: error.at };
  }
}

(globalThis as { __hutch_entry?: unknown }).__hutch_entry = prepared;
