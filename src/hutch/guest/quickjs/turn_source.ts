/**
 * Makes one async function from the source of a session's turn.
 *
 * The top-level declarations of the turn become global variables, which later turns can use and declare
 * again. Variable declarations are replaced by assignments. Function declarations are passed to the parameter
 * DEFINE before anything else runs. So a `const` can be assigned again, as in Node's REPL. Declarations
 * inside blocks stay local.
 */

import type { Pattern, Statement, VariableDeclaration } from "acorn";
import { GuestSyntaxError, type Program } from "../source/program.ts";
import {
  assemble,
  buildCached,
  type Edit,
  importEdit,
  parseSource,
  position,
  resultEdits,
} from "../source/source.ts";

/** Name of the parameter of the async function. It receives a function that defines global variables. */
const DEFINE = "__hutch_define";
/** Suffix for the name of a function declaration, so that the name itself refers to the global variable. */
const SUFFIX = "$hutch";
const CLOSE = "\n})";

export function prepareTurn(source: string, turn: number): Program {
  return buildCached(`turn\0${source}`, source, build).inFile(turnFile(turn));
}

/** Each turn has its own file name in stack traces, because its functions can be called by later turns. */
function turnFile(turn: number): string {
  return `turn-${turn}.js`;
}

function build(source: string): Program {
  const { tree, text, columns } = parseSource(source);
  const edits: Edit[] = [], functions = new Set<string>();
  const statements = tree.body.filter((node) => node.type !== "EmptyStatement");
  for (const node of statements) {
    if (node.type === "ImportDeclaration") edits.push(importEdit(node, text));
    else if (node.type.startsWith("Export")) {
      throw new GuestSyntaxError(
        "`export` has no meaning here; declarations are kept without it",
        position(text, node.start),
      );
    } else if (node.type === "VariableDeclaration" && !node.kind.includes("using")) {
      edits.push(...variableEdits(node, text));
    } else if (node.type === "ClassDeclaration") {
      edits.push(insert(node.start, `;${node.id.name}=`), insert(node.end, ";"));
    } else if (node.type === "FunctionDeclaration") {
      functions.add(node.id.name);
      edits.push(insert(node.id.end, SUFFIX));
    }
  }
  const last = statements.at(-1) as Statement | undefined;
  if (last?.type === "ExpressionStatement") edits.push(...resultEdits(text, last, statements.length === 1));
  const pairs = [...functions].map((name) => `[${JSON.stringify(name)},${name}${SUFFIX}]`);
  const hoisted = pairs.length ? `${DEFINE}([${pairs}]);` : "";
  return assemble(`(async (${DEFINE}) => {${hoisted}`, text, edits, CLOSE, columns);
}

function insert(at: number, text: string): Edit {
  return { from: at, to: at, text };
}

/** Rewrites `let a = 1, { b } = c` to `;(a = 1, { b } = c);`. */
function variableEdits({ kind, start, end, declarations }: VariableDeclaration, text: string): Edit[] {
  const edits: Edit[] = [];
  const first = declarations[0].start, last = declarations.at(-1)!.end;
  edits.push({ from: start, to: first, text: `;(${lineBreaks(text.slice(start, first))}` });
  for (const { id, init, end: at } of declarations) {
    // `var a` without a value keeps the value of an existing variable. `let a` sets it to undefined.
    if (!init) edits.push(insert(at, kind === "var" ? `=${ifDefined(id)}` : "=void 0"));
  }
  edits.push(insert(last, text[end - 1] === ";" && end > last ? ")" : ");"));
  return edits;
}

/** Only an identifier can be declared without a value, so `id` is one. */
function ifDefined(id: Pattern): string {
  const { name } = id as Extract<Pattern, { type: "Identifier" }>;
  return `typeof ${name}=="undefined"?void 0:${name}`;
}

function lineBreaks(text: string): string {
  return text.replace(/[^\n]+/g, "");
}
