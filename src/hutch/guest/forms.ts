/**
 * The source of abilities: wrappers, whose `export`s go, and transforms, which are one expression.
 *
 * Exports are found by a parser, so that the word in a string or a comment stays as it is.
 */

import type { ExportDefaultDeclaration, ExportNamedDeclaration, ModuleDeclaration, Statement } from "acorn";
import { type Columns, GuestSyntaxError, type Program } from "./program.ts";
import { assemble, type Edit, importEdit, parseEither, position, remembered } from "./source.ts";

const WRAPPER = "wrapper";
/** Two functions, so that a wrapper can have a `module` of its own. */
const OPEN_WRAPPER = "(async (module, exports) => (async () => {";
const CLOSE_WRAPPER = "\n})())";
const OPEN_TRANSFORM = "(async () => { const transformFn = ";
const CLOSE_TRANSFORM = "\n; return transformFn })";

const EXPORT_DEFAULT = /^export(?:\s|\/\*[^]*?\*\/|\/\/[^\n]*\n)+default/;

type Found = Statement | ModuleDeclaration;

/** A function that gives the wrapper, or anything else if there is none. */
export function prepareWrapper(source: string): Program {
  return remembered(`wrapper\0${source}`, source, buildWrapper);
}

/** As the specification has it: the code stands behind `const transformFn =`. */
export function prepareTransform(source: string): Program {
  return remembered(`transform\0${source}`, source, buildTransform);
}

function buildWrapper(source: string): Program {
  const { tree, text, columns } = parseEither(source);
  const edits: Edit[] = [];
  const exported: Record<string, string> = {};
  for (const node of tree.body as Found[]) {
    if (node.type === "ImportDeclaration") edits.push(importEdit(node, text));
    else if (node.type === "ExportNamedDeclaration") edits.push(...named(node, text, exported));
    else if (node.type === "ExportDefaultDeclaration") edits.push(...byDefault(node, text, exported));
    else if (node.type === "ExportAllDeclaration") throw elsewhere(text, node.start);
  }
  return assemble(OPEN_WRAPPER, text, edits, choice(exported) + CLOSE_WRAPPER, columns);
}

/** `export const a = 1` without its first word; `export { a as b }` not at all. */
function named(node: ExportNamedDeclaration, text: string, exported: Record<string, string>): Edit[] {
  if (node.source) throw elsewhere(text, node.start);
  if (node.declaration) {
    const from = node.start, to = node.declaration.start;
    return [{ from, to, text: blank(text, from, to) }];
  }
  for (const { local, exported: under } of node.specifiers) {
    const name = under.type === "Identifier" ? under.name : `${under.value}`;
    if (local.type === "Identifier") exported[name] = local.name;
  }
  return [{ from: node.start, to: node.end, text: blank(text, node.start, node.end) }];
}

function byDefault(node: ExportDefaultDeclaration, text: string, exported: Record<string, string>): Edit[] {
  const { declaration } = node;
  const from = node.start, to = declaration.start;
  if ("id" in declaration && declaration.id && declaration.type.endsWith("Declaration")) {
    exported.default = declaration.id.name;
    return [{ from, to, text: blank(text, from, to) }];
  }
  let name = "$default";
  while (text.includes(name)) name += "$";
  exported.default = name;
  // What stands in parentheses begins before it does.
  const open = text.slice(from, to).replace(EXPORT_DEFAULT, "");
  // Behind a declaration anything may follow, behind an expression not.
  return [{ from, to, text: `const ${name} =${open}` }, { from: node.end, to: node.end, text: ";" }];
}

/** Line breaks alone: what follows stays on its line. */
function blank(text: string, from: number, to: number): string {
  return text.slice(from, to).replace(/[^\n]+/g, "");
}

/** What is exported as `wrapper`, or called so, or is the only thing exported. */
function choice(exported: Record<string, string>): string {
  const last = "module.exports.wrapper ?? module.exports.default ?? module.exports";
  const otherwise = exported.default ?? last;
  const value = exported[WRAPPER] ?? `typeof wrapper !== "undefined" ? wrapper : ${otherwise}`;
  return `\nreturn ${value};`;
}

function elsewhere(text: string, offset: number): GuestSyntaxError {
  return new GuestSyntaxError("A wrapper cannot export from another module", position(text, offset));
}

function buildTransform(source: string): Program {
  const opening = "const transformFn = ";
  let parsed;
  try {
    parsed = parseEither(`${opening}${source}\n;`);
  } catch (error) {
    throw error instanceof GuestSyntaxError ? shifted(error, opening.length) : error;
  }
  const text = parsed.text.slice(opening.length, -2);
  const columns = () => withoutOpening(parsed.columns(), opening.length);
  return assemble(OPEN_TRANSFORM, text, [], CLOSE_TRANSFORM, columns);
}

function withoutOpening(columns: Columns | undefined, length: number): Columns | undefined {
  return columns?.map((line, i) => i ? line : line.map(([at, was]) => [at - length, was - length]));
}

function shifted(error: GuestSyntaxError, by: number): GuestSyntaxError {
  const { at, reason } = error;
  if (!at || at.line !== 1) return error;
  return new GuestSyntaxError(reason, { line: 1, column: Math.max(1, at.column - by) });
}
