/**
 * Script `precompile.js`, which makes programs of guest source. The deno runner loads it only when needed,
 * because it takes longer to load than the rest of the runner. Its value is the function `precompile`.
 */

import { GuestSyntaxError, type ProgramData, type SourceError } from "../source/program.ts";
import { prepareForDeno, provideTypeScript } from "../source/source.ts";

/** Errors are returned as data, because this script has its own copies of the classes. */
export type PrecompileResult = { program: ProgramData } | SourceError;

function precompile(source: string, readTypeScript: () => string): PrecompileResult {
  provideTypeScript(readTypeScript);
  try {
    return { program: prepareForDeno(source).data() };
  } catch (error) {
    if (!(error instanceof GuestSyntaxError)) throw error;
    return { reason: error.reason, at: error.at };
  }
}

(globalThis as { __hutch_entry?: unknown }).__hutch_entry = precompile;
