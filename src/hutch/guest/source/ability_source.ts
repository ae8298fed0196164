/**
 * Makes functions from the source of abilities: wrappers are modules, transforms are expressions.
 *
 * A parser finds the exports, so that `export` in a string or a comment is not changed.
 */

import type { ExportDefaultDeclaration, ExportNamedDeclaration, ModuleDeclaration, Statement } from "acorn";
import { type Columns, GuestSyntaxError, type Program } from "./program.ts";
import { assemble, buildCached, type Edit, importEdit, parseSource, position } from "./source.ts";

const WRAPPER = "wrapper";
/**
 * Start of the program of a wrapper: two nested functions, so that a wrapper can declare its own `module`.
 */
const OPEN_WRAPPER = "(async (module, exports) => (async () => {";
const CLOSE_WRAPPER = "\n})())";
const OPEN_TRANSFORM = "(async () => { const transformFn = ";
const CLOSE_TRANSFORM = "\n; return transformFn })";

const EXPORT_DEFAULT = /^export(?:\s|\/\*[^]*?\*\/|\/\/[^\n]*\n)+default/;

type TopLevelNode = Statement | ModuleDeclaration;

/** The program returns the wrapper, or another value if the source has none. */
export function prepareWrapper(source: string): Program {
  return buildCached(`wrapper\0${source}`, source, buildWrapper);
}

/**
 * Prepares an expression, because the specification puts the code of a transform after `const transformFn =`.
 */
export function prepareTransform(source: string): Program {
  return buildCached(`transform\0${source}`, source, buildTransform);
}

function buildWrapper(source: string): Program {
  const { tree, text, columns } = parseSource(source);
  const edits: Edit[] = [];
  const exported: Record<string, string> = {};
  for (const node of tree.body as TopLevelNode[]) {
    if (node.type === "ImportDeclaration") edits.push(importEdit(node, text));
    else if (node.type === "ExportNamedDeclaration") edits.push(...namedExportEdits(node, text, exported));
    else if (node.type === "ExportDefaultDeclaration") {
      edits.push(...defaultExportEdits(node, text, exported));
    } else if (node.type === "ExportAllDeclaration") throw reexportError(text, node.start);
  }
  return assemble(OPEN_WRAPPER, text, edits, returnStatement(exported) + CLOSE_WRAPPER, columns);
}

/** Removes the word `export` from `export const a = 1`, and removes all of `export { a as b }`. */
function namedExportEdits(
  node: ExportNamedDeclaration,
  text: string,
  exported: Record<string, string>,
): Edit[] {
  if (node.source) throw reexportError(text, node.start);
  if (node.declaration) {
    const from = node.start, to = node.declaration.start;
    return [{ from, to, text: lineBreaks(text, from, to) }];
  }
  for (const { local, exported: alias } of node.specifiers) {
    const name = alias.type === "Identifier" ? alias.name : `${alias.value}`;
    if (local.type === "Identifier") exported[name] = local.name;
  }
  return [{ from: node.start, to: node.end, text: lineBreaks(text, node.start, node.end) }];
}

function defaultExportEdits(
  node: ExportDefaultDeclaration,
  text: string,
  exported: Record<string, string>,
): Edit[] {
  const { declaration } = node;
  const from = node.start, to = declaration.start;
  if ("id" in declaration && declaration.id && declaration.type.endsWith("Declaration")) {
    exported.default = declaration.id.name;
    return [{ from, to, text: lineBreaks(text, from, to) }];
  }
  let name = "$default";
  while (text.includes(name)) name += "$";
  exported.default = name;
  // Keep opening parentheses, which come before the start of the expression.
  const parentheses = text.slice(from, to).replace(EXPORT_DEFAULT, "");
  // Insert a semicolon, because the declaration has become an expression.
  return [{ from, to, text: `const ${name} =${parentheses}` }, { from: node.end, to: node.end, text: ";" }];
}

/** Returns only the line breaks, so that the following code stays on its line. */
function lineBreaks(text: string, from: number, to: number): string {
  return text.slice(from, to).replace(/[^\n]+/g, "");
}

/** Selects the export `wrapper`, the declaration `wrapper`, the default export or CommonJS's exports. */
function returnStatement(exported: Record<string, string>): string {
  const commonJs = "module.exports.wrapper ?? module.exports.default ?? module.exports";
  const fallback = exported.default ?? commonJs;
  const value = exported[WRAPPER] ?? `typeof wrapper !== "undefined" ? wrapper : ${fallback}`;
  return `\nreturn ${value};`;
}

function reexportError(text: string, offset: number): GuestSyntaxError {
  return new GuestSyntaxError("A wrapper cannot export from another module", position(text, offset));
}

function buildTransform(source: string): Program {
  const prefix = "const transformFn = ";
  let parsed;
  try {
    parsed = parseSource(`${prefix}${source}\n;`);
  } catch (error) {
    throw error instanceof GuestSyntaxError ? shiftLeft(error, prefix.length) : error;
  }
  const text = parsed.text.slice(prefix.length, -2);
  const columns = () => withoutPrefix(parsed.columns(), prefix.length);
  return assemble(OPEN_TRANSFORM, text, [], CLOSE_TRANSFORM, columns);
}

function withoutPrefix(columns: Columns | undefined, length: number): Columns | undefined {
  return columns?.map((line, i) =>
    i ? line : line.map(([generated, original]) => [generated - length, original - length])
  );
}

function shiftLeft(error: GuestSyntaxError, by: number): GuestSyntaxError {
  const { at, reason } = error;
  if (!at || at.line !== 1) return error;
  return new GuestSyntaxError(reason, { line: 1, column: Math.max(1, at.column - by) });
}
