/**
 * TypeScript without its types, by Sucrase: JavaScript, so that no source can crash the process, as it can
 * the parser inside Deno.
 */

import { decode } from "@jridgewell/sourcemap-codec";
import { transform } from "sucrase";

export interface Stripped {
  text: string;
  /** Lines stay where they are; what column of the original line a column of `text` was, from 1. */
  column(line: number, column: number): number;
}

const FILE = "guest.ts";

/** Throws a SyntaxError with `loc`, counted from 1, or a RangeError for what nests too deeply. */
export function strip(source: string): Stripped {
  const { code, sourceMap } = transform(source, {
    transforms: ["typescript"],
    disableESTransforms: true,
    filePath: FILE,
    sourceMapOptions: { compiledFilename: FILE },
  });
  let lines: ReturnType<typeof decode> | undefined;
  return {
    text: code,
    column(line, column) {
      lines ??= decode(sourceMap!.mappings);
      const token = lines[line - 1]?.findLast(([at]) => at < column);
      return token?.[3] === undefined ? column : token[3] + column - token[0];
    },
  };
}
