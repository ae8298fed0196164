/**
 * Removes the types of TypeScript with Sucrase. Sucrase is JavaScript, so no source can crash the process,
 * which Deno's native parser does on deeply nested source.
 */

import { decode, type SourceMapSegment } from "@jridgewell/sourcemap-codec";
import { transform } from "sucrase";
import type { Columns } from "../source/program.ts";

export interface Stripped {
  text: string;
  /** undefined if no column changed. Lines never change. */
  columns: () => Columns | undefined;
}

const FILE = "guest.ts";

/** Matches a namespace. Sucrase silently drops namespaces, even those that contain values. */
const NAMESPACE = /^[ \t]*(?:export[ \t]+)?namespace[ \t]+[\w$.]+\s*\{/m;

/** Throws a SyntaxError with `loc`, counted from 1, or a RangeError for deep nesting. Keeps decorators. */
export function strip(source: string): Stripped {
  const found = NAMESPACE.exec(source);
  if (found) {
    const line = source.slice(0, found.index).split("\n").length;
    const column = found[0].length - found[0].trimStart().length + 1;
    const message = "A namespace cannot be run; use an object or a module's own scope instead";
    throw Object.assign(new SyntaxError(message), { loc: { line, column }, needsCompiler: true });
  }
  const { code, sourceMap } = transform(source, {
    transforms: ["typescript"],
    disableESTransforms: true,
    filePath: FILE,
    sourceMapOptions: { compiledFilename: FILE },
  });
  let columns: Columns | undefined;
  return { text: code, columns: () => columns ??= decode(sourceMap!.mappings).map(offsetChanges) };
}

/** Returns the tokens of a line at which the offset to the original column changes. */
function offsetChanges(tokens: SourceMapSegment[]): Columns[number] {
  let offset = 0;
  return tokens.flatMap((token): Columns[number] => {
    const [generated, , , original = generated] = token as [number, number?, number?, number?];
    if (original - generated === offset) return [];
    offset = original - generated;
    return [[generated, original]];
  });
}
