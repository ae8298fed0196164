/** Finds the loop in which QuickJS interrupted a function. */

import { type Node, parse } from "acorn";

/** Longer code is not searched, because parsing it would delay other executions. */
const MAX_CHARS = 50_000;
const LOOPS = new Set([
  "ForStatement",
  "ForInStatement",
  "ForOfStatement",
  "WhileStatement",
  "DoWhileStatement",
]);
const FUNCTIONS = new Set(["FunctionDeclaration", "FunctionExpression", "ArrowFunctionExpression"]);

/** A function, or the whole code. */
interface Scope {
  start: number;
  end: number;
  name?: string;
  loops: { start: number; end: number }[];
}

/**
 * Returns the start of the loop that was interrupted, given the name of the function, if it has one, and the
 * last position that QuickJS recorded before the interruption. QuickJS records positions only for some
 * instructions, such as calls, so a loop may have none. Then the position is before the loop, or even before
 * the function, and the first loop after it in the function is the result. Returns undefined if the position
 * is in a loop, or if there is no such loop.
 */
export function interruptedLoop(code: string, offset: number, name?: string): number | undefined {
  const scopes = code.length > MAX_CHARS ? [] : scopesOf(code);
  const inScope = ({ start, end }: { start: number; end: number }) => start <= offset && offset < end;
  const named = scopes.filter((scope) => scope.name === name);
  let scope = named.filter(inScope).at(-1);
  if (name !== undefined) scope ??= named.find(({ start }) => start >= offset);
  if (!scope || scope.loops.some(inScope)) return undefined;
  const isLater = ({ start }: { start: number }) => start > offset;
  // A function without a name that follows the position may have been called by the function there.
  const found = scope.loops.find(isLater) ??
    named.filter(isLater).find(({ loops }) => loops.length)?.loops[0];
  return found?.start;
}

/** Returns the scopes of the code and their own loops, in the order in which they begin. */
function scopesOf(code: string): Scope[] {
  let tree: Node;
  try {
    tree = parse(code, {
      ecmaVersion: "latest",
      allowAwaitOutsideFunction: true,
      allowReturnOutsideFunction: true,
    });
  } catch {
    return [];
  }
  const scopes: Scope[] = [];
  const nodes: { node: any; scope: Scope; name?: string }[] = [];
  const open = ({ start, end }: Node, name?: string): Scope => {
    const scope = { start, end, name, loops: [] };
    scopes.push(scope);
    return scope;
  };
  nodes.push({ node: tree, scope: open(tree) });
  for (let entry = nodes.pop(); entry; entry = nodes.pop()) {
    const { node, name } = entry;
    let { scope } = entry;
    if (FUNCTIONS.has(node.type)) scope = open(node, node.id?.name ?? name);
    if (LOOPS.has(node.type)) scope.loops.push(node);
    const children = Object.values(node).flat().filter((child: any) => typeof child?.type === "string");
    for (const child of children.reverse()) nodes.push({ node: child, scope, name: nameOfValue(node) });
  }
  return scopes;
}

/** Returns the name that a function gets from the declaration or property whose value it is. */
function nameOfValue(node: any): string | undefined {
  if (node.type === "VariableDeclarator") return node.id.name;
  if (!["Property", "PropertyDefinition", "MethodDefinition"].includes(node.type)) return undefined;
  return ["get", "set"].includes(node.kind) ? `${node.kind} ${node.key.name}` : node.key.name;
}
