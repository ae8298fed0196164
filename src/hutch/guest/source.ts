/**
 * Guest source in all its accepted forms, made into one async function.
 *
 * An expression, statements that end in one, a body with `return`, one function, any of these fenced,
 * in JavaScript or TypeScript. Lines stay where they are; `Program.locate` undoes what was inserted.
 */

import { type ImportDeclaration, parse, type Program as Tree, type Statement } from "acorn";

export interface Position {
  line: number;
  column: number;
}

export class GuestSyntaxError extends Error {
  constructor(message: string, readonly at?: Position) {
    super(at ? `${message} (${at.line}:${at.column})` : message);
  }
}

interface Edit {
  from: number;
  to: number;
  text: string;
}

const OPEN = "(async () => {";
const CLOSE = "\n})";
/** Guest code is evaluated under this name; V8 and QuickJS write its frames differently. */
export const FILE = "guest.js";
const FRAME = /guest\.js(?:, <anonymous>)?:(\d+):(\d+)/;
const STRIP_ERROR = /^(?:SyntaxError: )?([^\n]*)[\s\S]* at file:[^\n]*?:(\d+):(\d+)\s*$/;
const CACHE_SIZE = 64;
const CACHEABLE = 64 * 1024;

export class Program {
  /** `code` evaluates to the function to call. */
  constructor(readonly code: string, readonly edits: readonly Edit[], readonly source: string) {}

  /** The innermost of the guest's own lines in a stack. */
  lineOf(stack: string | undefined): Partial<Position> {
    const frame = FRAME.exec(stack ?? "");
    return frame ? this.locate(Number(frame[1]), Number(frame[2])) : {};
  }

  /** Where a position in `code` is in what the guest's author wrote. */
  locate(line: number, column: number): Position {
    if (line === 1) column -= OPEN.length;
    let lineStart = 0;
    for (let n = 1; n < line; n++) lineStart = this.source.indexOf("\n", lineStart) + 1;
    for (const { from, to, text } of this.edits) {
      const lineEnd = this.source.indexOf("\n", lineStart);
      const onLine = from >= lineStart && (lineEnd < 0 || from <= lineEnd);
      if (onLine && column - 1 > from - lineStart) column -= text.length - (to - from);
    }
    return { line, column: Math.max(1, column) };
  }
}

type Strip = (source: string, options: { mode: "strip" | "transform" }) => string;

let stripTypeScriptTypes: Strip | undefined;

/** Node's module API takes 20 to 50 ms to load, and most sources are JavaScript. */
export async function loadTypeScript(): Promise<void> {
  stripTypeScriptTypes ??= (await import("node:module")).stripTypeScriptTypes as Strip;
}

/** Thrown by `prepare` for what is no JavaScript, while TypeScript's part is not loaded. */
export class TypeScriptNeeded extends Error {}

/** `prepare`, with TypeScript's part loaded if it is needed. */
export async function prepareEither(source: string): Promise<Program> {
  try {
    return prepare(source);
  } catch (error) {
    if (!(error instanceof TypeScriptNeeded)) throw error;
    await loadTypeScript();
    return prepare(source);
  }
}

const cache = new Map<string, Program>();

export function prepare(source: string): Program {
  const known = cache.get(source);
  if (known) return known;
  const program = build(unfence(source));
  if (source.length <= CACHEABLE) {
    if (cache.size >= CACHE_SIZE) cache.delete(cache.keys().next().value!);
    cache.set(source, program);
  }
  return program;
}

/** One Markdown fence around everything; its opening line stays as an empty one. */
function unfence(source: string): string {
  const fenced = /^\s*```[^\n`]*\n([\s\S]*?)\n?[ \t]*```\s*$/.exec(source);
  if (!fenced || fenced[1].includes("\n```")) return source;
  const before = source.slice(0, source.indexOf(fenced[1], source.indexOf("```") + 3));
  return before.replace(/[^\n]+/g, "") + fenced[1];
}

function build(source: string): Program {
  const { tree, text } = parseEither(source);
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
  return new Program(OPEN + apply(text, edits) + tail + CLOSE, edits, text);
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

/** JavaScript as it is; else TypeScript with its types blanked out, or, for enums and the like, rewritten. */
function parseEither(source: string): { tree: Tree; text: string } {
  try {
    return { tree: parseJs(source), text: source };
  } catch (error) {
    const text = strip(source, error as GuestSyntaxError);
    return { tree: parseJs(text), text };
  }
}

/** Of two complaints about a source, the one that got further is about what is really wrong. */
function strip(source: string, asJavaScript: GuestSyntaxError): string {
  if (!stripTypeScriptTypes) throw new TypeScriptNeeded();
  try {
    return stripTypeScriptTypes(source, { mode: "strip" });
  } catch {
    try {
      return stripTypeScriptTypes(source, { mode: "transform" });
    } catch (error) {
      const [, message, line, column] = STRIP_ERROR.exec((error as Error).message) ?? [];
      const at = { line: Number(line), column: Number(column) };
      throw message && asJavaScript.at && after(at, asJavaScript.at)
        ? new GuestSyntaxError(message, at)
        : asJavaScript;
    }
  }
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
    if (!(error instanceof SyntaxError)) throw new GuestSyntaxError("The source is nested too deeply");
    const at = (error as SyntaxError & { loc?: { line: number; column: number } }).loc;
    const message = error.message.replace(/ \(\d+:\d+\)$/, "");
    throw new GuestSyntaxError(message, at && { line: at.line, column: at.column + 1 });
  }
}

/** `import a, { b as c } from "m"` as `const { default: a, b: c } = await import("m");`, lines kept. */
function importEdit(node: ImportDeclaration, text: string): Edit {
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

function position(text: string, offset: number): Position {
  const before = text.slice(0, offset).split("\n");
  return { line: before.length, column: before.at(-1)!.length + 1 };
}
