/**
 * Makes one async function from guest source.
 *
 * Accepts an expression, statements that end in one, a body with `return`, or one function; in JavaScript or
 * TypeScript, optionally inside a Markdown fence. Keeps line numbers.
 */

import {
  type ExpressionStatement,
  type ImportDeclaration,
  parse,
  type Program as Tree,
  type Statement,
} from "acorn";
import { GuestSyntaxError, type Insertion, originalColumn, type Position, Program } from "./program.ts";
import type { Stripped } from "../typescript/strip.ts";

export interface Edit {
  from: number;
  to: number;
  text: string;
}

const OPEN = "(async () => {";
const CLOSE = "\n})";
const OPEN_MODULE = "export default async () => {";
const CLOSE_MODULE = "\n}";
const DECORATOR = /(?:^|[\s({};,])@[\w$(]$/;
const CACHE_SIZE = 64;
const CACHEABLE = 64 * 1024;

type Strip = (source: string) => Stripped;

const evaluate = eval;
let readTypeScript = () => "";
let strip: Strip | undefined;

/**
 * Sets the function that reads `typescript.js`. Loading it takes about 20 ms, and most sources are
 * JavaScript.
 */
export function provideTypeScript(read: () => string): void {
  readTypeScript = read;
}

/** Loads `typescript.js` unless it is already loaded. `prepare` calls this when a source needs it. */
export function loadTypeScript(): Strip {
  return strip ??= evaluate(readTypeScript()) as Strip;
}

const cache = new Map<string, Program>();

export function prepare(source: string): Program {
  return buildCached(source, source, build);
}

/** Prepares source for the deno engine, whose compiler accepts more TypeScript than `strip` does. */
export function prepareForDeno(source: string): Program {
  try {
    return prepare(source);
  } catch (error) {
    if (!(error instanceof GuestSyntaxError) || !error.needsCompiler) throw error;
    const module = assemble(OPEN_MODULE, unfence(source), [], CLOSE_MODULE, () => undefined);
    return Program.fromData({ ...module.data(), sourceError: { reason: error.reason, at: error.at } });
  }
}

/** Returns the cached program of `key`, or builds it. */
export function buildCached(key: string, source: string, build: (source: string) => Program): Program {
  const cached = cache.get(key);
  if (cached) return cached;
  const program = build(unfence(source));
  if (source.length <= CACHEABLE) {
    if (cache.size >= CACHE_SIZE) cache.delete(cache.keys().next().value!);
    cache.set(key, program);
  }
  return program;
}

/** Removes a Markdown fence around the whole source. Its opening line becomes empty. */
function unfence(source: string): string {
  const start = source.search(/\S/),
    firstBreak = source.indexOf("\n", start),
    end = source.trimEnd().length - 3;
  if (start < 0 || firstBreak < 0 || end <= firstBreak) return source;
  if (!source.startsWith("```", start) || !source.startsWith("```", end)) return source;
  if (source.slice(start + 3, firstBreak).includes("`")) return source;
  const inner = source.slice(firstBreak + 1, end).trimEnd();
  if (inner.includes("\n```")) return source;
  return source.slice(0, firstBreak + 1).replace(/[^\n]+/g, "") + inner;
}

function build(source: string): Program {
  const { tree, text, columns } = parseSource(source);
  const edits: Edit[] = [];
  let suffix = "";
  const statements = tree.body.filter((node) => node.type !== "EmptyStatement");
  for (const node of statements) {
    if (node.type === "ImportDeclaration") edits.push(importEdit(node, text));
    else if (node.type.startsWith("Export")) {
      throw new GuestSyntaxError("`export` has no meaning here; use `return`", position(text, node.start));
    }
  }
  const last = statements.at(-1) as Statement | undefined;
  const isOnly = statements.length === 1;
  if (isOnly && last?.type === "FunctionDeclaration") {
    suffix = `\nreturn ${last.id.name}();`;
  } else if (last?.type === "ExpressionStatement") edits.push(...resultEdits(text, last, isOnly));
  return assemble(OPEN, text, edits, suffix + CLOSE, columns);
}

/**
 * Returns the edits that make the last statement return its value. If the statement is a function and the
 * only statement (`isOnly`), the edits also call the function.
 */
export function resultEdits(text: string, last: ExpressionStatement, isOnly: boolean): Edit[] {
  const { expression, start } = last, end = expressionEnd(text, last);
  const isFunction = isOnly &&
    (expression.type === "ArrowFunctionExpression" || expression.type === "FunctionExpression");
  return [{ from: start, to: start, text: "return (" }, {
    from: end,
    to: end,
    text: isFunction ? ")()" : ")",
  }];
}

/** Applies the edits and puts the result between `open` and `close`. */
export function assemble(
  open: string,
  text: string,
  edits: Edit[],
  close: string,
  columns: Stripped["columns"],
): Program {
  return new Program(
    open + applyEdits(text, edits) + close,
    open.length,
    countLines(text),
    () => insertions(text, edits),
    columns,
  );
}

/** Returns the insertions that the edits make. The edits must be sorted by position. */
function insertions(text: string, edits: Edit[]): Insertion[] {
  let line = 1, start = 0;
  return edits.map(({ from, to, text: inserted }) => {
    for (let end = text.indexOf("\n", start); end >= 0 && end < from; end = text.indexOf("\n", start)) {
      line++;
      start = end + 1;
    }
    return [line, from - start, inserted.length - (to - from)];
  });
}

function countLines(text: string): number {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count++;
  return count;
}

/** Returns the end of an expression statement, after its parentheses and before its semicolon. */
function expressionEnd(text: string, statement: Statement): number {
  return text[statement.end - 1] === ";" ? statement.end - 1 : statement.end;
}

function applyEdits(text: string, edits: Edit[]): string {
  let out = "", at = 0;
  for (const edit of [...edits].sort((a, b) => a.from - b.from)) {
    out += text.slice(at, edit.from) + edit.text;
    at = edit.to;
  }
  return out + text.slice(at);
}

/** Parses JavaScript, or else TypeScript without its types. */
export function parseSource(source: string): Stripped & { tree: Tree } {
  try {
    return { tree: parseJs(source), text: source, columns: () => undefined };
  } catch (jsError) {
    try {
      return parseTypeScript(source, jsError as GuestSyntaxError);
    } catch (error) {
      const { reason, at, needsCompiler } = error as GuestSyntaxError;
      if (reason !== "Unexpected token" || !at || !isAtEnd(source, at)) throw error;
      throw new GuestSyntaxError("Unexpected end of the code", at, needsCompiler);
    }
  }
}

/** Returns true if a position is after the last character of the source. */
function isAtEnd(source: string, { line, column }: Position): boolean {
  const lines = source.trimEnd().split("\n");
  return line > lines.length || (line === lines.length && column > lines[line - 1].length);
}

function parseTypeScript(source: string, jsError: GuestSyntaxError): Stripped & { tree: Tree } {
  if (!jsError.at) throw jsError;
  let stripped: Stripped | undefined;
  try {
    stripped = loadTypeScript()(source);
    return { ...stripped, tree: parseJs(stripped.text) };
  } catch (error) {
    const tsError = error instanceof GuestSyntaxError
      ? atOriginalColumn(error, stripped!)
      : syntaxError(error);
    // Report the error of the parser that got further, because that is probably the actual mistake.
    const { reason, at } = tsError.at && !isAfter(tsError.at, jsError.at) ? jsError : tsError;
    throw new GuestSyntaxError(reason, at, tsError.needsCompiler);
  }
}

function atOriginalColumn(error: GuestSyntaxError, stripped: Stripped): GuestSyntaxError {
  if (!error.at) return error;
  const { line, column } = error.at;
  const at = { line, column: originalColumn(stripped.columns(), line, column) };
  return new GuestSyntaxError(error.reason, at, isDecorator(stripped.text, line, column));
}

/** Returns true if a decorator may begin at the position. Sucrase does not remove decorators. */
function isDecorator(text: string, line: number, column: number): boolean {
  return text.includes("class") && DECORATOR.test(text.split("\n", line).at(-1)!.slice(0, column + 1));
}

/** Converts a parser's error; anything but a SyntaxError is a stack overflow. */
function syntaxError(error: unknown, firstColumn = 1): GuestSyntaxError {
  if (!(error instanceof SyntaxError)) return new GuestSyntaxError("The source is nested too deeply");
  const { loc: at, needsCompiler } = error as SyntaxError & { loc?: Position; needsCompiler?: boolean };
  const message = error.message.replace(/^Error transforming [^:]*: | \(\d+:\d+\)$/g, "");
  return new GuestSyntaxError(
    message,
    at && { line: at.line, column: at.column + 1 - firstColumn },
    needsCompiler,
  );
}

function isAfter(one: Position, other: Position): boolean {
  return one.line > other.line || (one.line === other.line && one.column > other.column);
}

function parseJs(text: string): Tree {
  try {
    return parse(text, {
      ecmaVersion: "latest",
      sourceType: "script",
      allowReturnOutsideFunction: true,
      allowAwaitOutsideFunction: true,
      allowImportExportEverywhere: true,
    });
  } catch (error) {
    throw syntaxError(error, 0);
  }
}

/** Rewrites `import a, { b as c } from "m"` to `const { default: a, b: c } = await import("m");`. */
export function importEdit(node: ImportDeclaration, text: string): Edit {
  // The exports of the module "toolscript" are globals, so they are not imported.
  const module = node.source.value === "toolscript" ? "globalThis" : `await import(${node.source.raw})`;
  let declaration = `${module};`;
  const namespace = node.specifiers.find(({ type }) => type === "ImportNamespaceSpecifier");
  const names = node.specifiers.flatMap((specifier) => {
    const { local } = specifier;
    if (specifier.type === "ImportDefaultSpecifier") return [`default: ${local.name}`];
    if (specifier.type === "ImportNamespaceSpecifier") return [];
    const { imported } = specifier;
    return [`${imported.type === "Identifier" ? imported.name : imported.raw}: ${local.name}`];
  });
  const bindings = [
    ...(namespace ? [`${namespace.local.name} = ${module}`] : []),
    ...(names.length ? [`{ ${names.join(", ")} } = ${namespace ? namespace.local.name : module}`] : []),
  ];
  if (bindings.length) declaration = `const ${bindings.join(", ")};`;
  const lines = text.slice(node.start, node.end).split("\n").length - 1;
  return { from: node.start, to: node.end, text: declaration + "\n".repeat(lines) };
}

export function position(text: string, offset: number): Position {
  const before = text.slice(0, offset).split("\n");
  return { line: before.length, column: before.at(-1)!.length + 1 };
}
