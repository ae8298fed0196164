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

/** Sucrase drops a namespace, also one with values in it, without a word. */
const NAMESPACE = /^[ \t]*(?:export[ \t]+)?namespace[ \t]+[\w$.]+\s*\{/m;

/** Throws a SyntaxError with `loc`, counted from 1, or a RangeError for what nests too deeply. */
export function strip(source: string): Stripped {
  const found = NAMESPACE.exec(source);
  if (found) {
    const line = source.slice(0, found.index).split("\n").length;
    const column = found[0].length - found[0].trimStart().length + 1;
    const message = "A namespace cannot be run; use an object or a module's own scope instead";
    throw Object.assign(new SyntaxError(message), { loc: { line, column } });
  }
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
