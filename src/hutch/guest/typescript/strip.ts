/**
 * TypeScript without its types, by Sucrase: JavaScript, so that no source can crash the process, as it can
 * the parser inside Deno.
 */

import { decode, type SourceMapSegment } from "@jridgewell/sourcemap-codec";
import { transform } from "sucrase";
import type { Columns } from "../program.ts";

export interface Stripped {
  text: string;
  /** Lines stay where they are; undefined where columns do too. */
  columns: () => Columns | undefined;
}

const FILE = "guest.ts";

/** Sucrase drops a namespace, also one with values in it, without a word. */
const NAMESPACE = /^[ \t]*(?:export[ \t]+)?namespace[ \t]+[\w$.]+\s*\{/m;

/** Throws a SyntaxError with `loc`, counted from 1, or a RangeError for what nests too deeply. Decorators stay. */
export function strip(source: string): Stripped {
  const found = NAMESPACE.exec(source);
  if (found) {
    const line = source.slice(0, found.index).split("\n").length;
    const column = found[0].length - found[0].trimStart().length + 1;
    const message = "A namespace cannot be run; use an object or a module's own scope instead";
    throw Object.assign(new SyntaxError(message), { loc: { line, column }, isBeyond: true });
  }
  const { code, sourceMap } = transform(source, {
    transforms: ["typescript"],
    disableESTransforms: true,
    filePath: FILE,
    sourceMapOptions: { compiledFilename: FILE },
  });
  let columns: Columns | undefined;
  return { text: code, columns: () => columns ??= decode(sourceMap!.mappings).map(shifts) };
}

/** Of what begins on a line, all that is not as far from where it was as what is before it. */
function shifts(tokens: SourceMapSegment[]): Columns[number] {
  let by = 0;
  return tokens.flatMap((token): Columns[number] => {
    const [at, , , was = at] = token as [number, number?, number?, number?];
    if (was - at === by) return [];
    by = was - at;
    return [[at, was]];
  });
}
