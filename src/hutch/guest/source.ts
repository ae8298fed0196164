/**
 * Guest source in all its accepted forms, made into one async function.
 *
 * An expression, statements that end in one, a body with `return`, one function, any of these fenced,
 * in JavaScript or TypeScript. Lines stay where they are.
 */

import { type ImportDeclaration, parse, type Program as Tree, type Statement } from "acorn";
import { GuestSyntaxError, type Moved, original, type Position, Program } from "./program.ts";
import type { Stripped } from "./typescript/strip.ts";

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
let script = () => "";
let known: Strip | undefined;

/** Where TypeScript's part comes from. It takes some 20 ms to load, and most sources are JavaScript. */
export function provideTypeScript(read: () => string): void {
  script = read;
}

/** Happens by itself when it is needed. */
export function loadTypeScript(): Strip {
  return known ??= evaluate(script()) as Strip;
}

const cache = new Map<string, Program>();

export function prepare(source: string): Program {
  return remembered(source, source, build);
}

/** The same for Deno, whose own TypeScript may take as the body of a function what ours does not. */
export function prepareForDeno(source: string): Program {
  try {
    return prepare(source);
  } catch (error) {
    if (!(error instanceof GuestSyntaxError) || !error.isBeyond) throw error;
    const module = assemble(OPEN_MODULE, unfence(source), [], CLOSE_MODULE, () => undefined);
    return Program.of({ ...module.data(), refusal: { reason: error.reason, at: error.at } });
  }
}

/** What `build` makes of a source, or made of it when `key` came before. */
export function remembered(key: string, source: string, build: (source: string) => Program): Program {
  const cached = cache.get(key);
  if (cached) return cached;
  const program = build(unfence(source));
  if (source.length <= CACHEABLE) {
    if (cache.size >= CACHE_SIZE) cache.delete(cache.keys().next().value!);
    cache.set(key, program);
  }
  return program;
}

/** One Markdown fence around everything; its opening line stays as an empty one. */
function unfence(source: string): string {
  const start = source.search(/\S/), opened = source.indexOf("\n", start), end = source.trimEnd().length - 3;
  if (start < 0 || opened < 0 || end <= opened) return source;
  if (!source.startsWith("```", start) || !source.startsWith("```", end)) return source;
  if (source.slice(start + 3, opened).includes("`")) return source;
  const inner = source.slice(opened + 1, end).trimEnd();
  if (inner.includes("\n```")) return source;
  return source.slice(0, opened + 1).replace(/[^\n]+/g, "") + inner;
}

function build(source: string): Program {
  const { tree, text, columns } = parseEither(source);
  const edits: Edit[] = [];
  let tail = "";
  const statements = tree.body.filter((node) => node.type !== "EmptyStatement");
  for (const node of statements) {
    if (node.type === "ImportDeclaration") edits.push(importEdit(node, text));
    else if (node.type.startsWith("Export")) {
      throw new GuestSyntaxError("`export` has no meaning here; use `return`", position(text, node.start));
    }
  }
  const last = statements.at(-1) as Statement | undefined;
  const only = statements.length === 1;
  if (only && last?.type === "FunctionDeclaration") {
    tail = `\nreturn ${last.id.name}();`;
  } else if (last?.type === "ExpressionStatement") {
    const { expression } = last;
    const called = only &&
      (expression.type === "ArrowFunctionExpression" || expression.type === "FunctionExpression");
    edits.push({ from: last.start, to: last.start, text: "return (" });
    edits.push({ from: enclosed(text, last), to: enclosed(text, last), text: called ? ")()" : ")" });
  }
  return assemble(OPEN, text, edits, tail + CLOSE, columns);
}

/** A text with its edits, and something around it. */
export function assemble(
  open: string,
  text: string,
  edits: Edit[],
  close: string,
  columns: Stripped["columns"],
): Program {
  const lines = lineCount(text);
  return new Program(
    open + apply(text, edits) + close,
    open.length,
    lines,
    () => moved(text, edits),
    columns,
  );
}

/** Edits come in the order of the text. */
function moved(text: string, edits: Edit[]): Moved[] {
  let line = 1, start = 0;
  return edits.map(({ from, to, text: inserted }) => {
    for (let end = text.indexOf("\n", start); end >= 0 && end < from; end = text.indexOf("\n", start)) {
      line++;
      start = end + 1;
    }
    return [line, from - start, inserted.length - (to - from)];
  });
}

function lineCount(text: string): number {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count++;
  return count;
}

/** The end of an expression statement without its semicolon (an expression may stand in parentheses). */
function enclosed(text: string, statement: Statement): number {
  return text[statement.end - 1] === ";" ? statement.end - 1 : statement.end;
}

function apply(text: string, edits: Edit[]): string {
  let out = "", at = 0;
  for (const edit of [...edits].sort((a, b) => a.from - b.from)) {
    out += text.slice(at, edit.from) + edit.text;
    at = edit.to;
  }
  return out + text.slice(at);
}

/** JavaScript as it is, else TypeScript without its types. */
export function parseEither(source: string): Stripped & { tree: Tree } {
  try {
    return { tree: parseJs(source), text: source, columns: () => undefined };
  } catch (error) {
    return parseTypeScript(source, error as GuestSyntaxError);
  }
}

function parseTypeScript(source: string, asJavaScript: GuestSyntaxError): Stripped & { tree: Tree } {
  if (!asJavaScript.at) throw asJavaScript;
  let stripped: Stripped | undefined;
  try {
    stripped = loadTypeScript()(source);
    return { ...stripped, tree: parseJs(stripped.text) };
  } catch (error) {
    const asTypeScript = error instanceof GuestSyntaxError ? relocated(error, stripped!) : syntaxError(error);
    // Of two complaints about a source, the one that got further is about what is really wrong.
    const { reason, at } = asTypeScript.at && !after(asTypeScript.at, asJavaScript.at)
      ? asJavaScript
      : asTypeScript;
    throw new GuestSyntaxError(reason, at, asTypeScript.isBeyond);
  }
}

function relocated(error: GuestSyntaxError, stripped: Stripped): GuestSyntaxError {
  if (!error.at) return error;
  const { line, column } = error.at;
  const at = { line, column: original(stripped.columns(), line, column) };
  return new GuestSyntaxError(error.reason, at, isDecorator(stripped.text, line, column));
}

/** Whether a decorator may begin there: Sucrase leaves them as they are. */
function isDecorator(text: string, line: number, column: number): boolean {
  return text.includes("class") && DECORATOR.test(text.split("\n", line).at(-1)!.slice(0, column + 1));
}

/** What a parser threw; anything but a SyntaxError means that it ran out of stack. */
function syntaxError(error: unknown, firstColumn = 1): GuestSyntaxError {
  if (!(error instanceof SyntaxError)) return new GuestSyntaxError("The source is nested too deeply");
  const { loc: at, isBeyond } = error as SyntaxError & { loc?: Position; isBeyond?: boolean };
  const message = error.message.replace(/^Error transforming [^:]*: | \(\d+:\d+\)$/g, "");
  return new GuestSyntaxError(
    message,
    at && { line: at.line, column: at.column + 1 - firstColumn },
    isBeyond,
  );
}

function after(one: Position, other: Position): boolean {
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

/** `import a, { b as c } from "m"` as `const { default: a, b: c } = await import("m");`, lines kept. */
export function importEdit(node: ImportDeclaration, text: string): Edit {
  const module = `await import(${node.source.raw})`;
  let declaration = `${module};`;
  const namespace = node.specifiers.find((each) => each.type === "ImportNamespaceSpecifier");
  const names = node.specifiers.flatMap((each) => {
    if (each.type === "ImportDefaultSpecifier") return [`default: ${each.local.name}`];
    if (each.type === "ImportNamespaceSpecifier") return [];
    const imported = each.imported.type === "Identifier" ? each.imported.name : each.imported.raw;
    return [`${imported}: ${each.local.name}`];
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
