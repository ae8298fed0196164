/** Finds the tool that a name stands for in what a package exports. */

import { faultOf, ToolFault } from "./fault.ts";

export interface Tool {
  execute: (params: unknown, options: unknown) => unknown;
  description?: unknown;
  inputSchema?: unknown;
  parameters?: unknown;
}

type Exports = Record<string, unknown>;
type Factory = (config?: unknown) => unknown;

const { hasOwn, keys } = Object;
const { isArray } = Array;
const { apply } = Reflect;
const { toString: sourceOf } = Function.prototype;
const MAX_LISTED = 20;

/** The tool `name` of a package; a factory is called for its tool, with `env` if it wants a configuration. */
export async function resolve(
  pkg: Exports,
  name: string,
  env: Record<string, string>,
  packageName: string,
): Promise<Tool> {
  const [found] = candidates(pkg, name);
  if (!found) throw new ToolFault("tool_not_found", notFound(pkg, name, packageName));
  const { value } = found;
  if (isTool(value)) return value;
  const what = `Export "${name}" of ${packageName}`;
  if (typeof value !== "function" || isClass(value)) throw invalid(`${what} is ${describe(value)}`);
  return await make(value as Factory, env, what);
}

export function isTool(value: unknown): value is Tool {
  return isObject(value) && typeof (value as Partial<Tool>).execute === "function";
}

interface Found {
  value: unknown;
}

/** What a name can stand for, the likeliest first. Own properties alone: `toString` is nobody's tool. */
function candidates(pkg: Exports, name: string): Found[] {
  const mains = defaults(pkg);
  if (name === "default") return mains;
  const found = [own(pkg, name), ...mains.map(({ value }) => member(value, name))].flat();
  if (mains[0] && names(mains[0].value).includes(name)) found.push(mains[0]);
  // A name for nothing is one only if it is for nothing else.
  return found.sort((one, other) => Number(one.value == null) - Number(other.value == null));
}

function find(pkg: Exports, name: string): unknown {
  return candidates(pkg, name)[0]?.value;
}

/** Default exports: a CommonJS module that was compiled from one of ours has two. */
function defaults(pkg: Exports): Found[] {
  const [outer] = own(pkg, "default");
  if (!outer) return [];
  const inner = own(outer.value, "default");
  return isTool(outer.value) ? [outer, ...inner] : [...inner, outer];
}

/** How a default export calls itself. */
function names(main: unknown): unknown[] {
  return ["name", "toolName", "id"].flatMap((name) => own(main, name)).map(({ value }) => value);
}

/** Of a tool or a function, `execute` and `name` are parts of it; only what is a tool itself is not. */
function member(main: unknown, name: string): Found[] {
  const found = own(main, name);
  return isTool(main) || typeof main === "function" ? found.filter(({ value }) => isTool(value)) : found;
}

function own(holder: unknown, name: string): Found[] {
  return isObject(holder) && hasOwn(holder, name) ? [{ value: (holder as Exports)[name] }] : [];
}

function isObject(value: unknown): value is object {
  return (typeof value === "object" && value !== null) || typeof value === "function";
}

function isClass(value: unknown): boolean {
  return typeof value === "function" && apply(sourceOf, value, []).startsWith("class");
}

/** The first of the known ways to call a factory that gives a tool. */
async function make(factory: Factory, env: Record<string, string>, what: string): Promise<Tool> {
  const key = keys(env).find((name) => name.includes("API_KEY"));
  const attempts = [[], [{ ...env }], ...(key ? [[{ apiKey: env[key] }]] : [])];
  const errors: unknown[] = [];
  let given: { value: unknown } | undefined;
  for (const args of attempts) {
    try {
      const value = await factory(...args);
      if (isTool(value)) return value;
      given ??= { value };
    } catch (error) {
      errors.push(error);
    }
  }
  if (given) throw invalid(`${what} is a function that gives ${describe(given.value)}`);
  // "Cannot read properties of undefined" says less than what a factory has to say itself.
  const telling = errors.find((error) => !(error instanceof TypeError)) ?? errors.at(-1);
  throw faultOf("configuration_required", telling);
}

function invalid(what: string): ToolFault {
  return new ToolFault("tool_invalid", `${what}, not a tool with an execute() method`);
}

function describe(value: unknown): string {
  if (value === undefined || value === null) return String(value);
  if (isArray(value)) return "an array";
  if (typeof value === "function") return isClass(value) ? "a class" : "a function";
  if (typeof value !== "object") return `a ${typeof value}`;
  const listed = listing(keys(value));
  return listed ? `an object with ${listed}` : "an empty object";
}

function notFound(pkg: Exports, name: string, packageName: string): string {
  const mains = defaults(pkg).map(({ value }) => value).filter((value) => !isTool(value));
  const all = [...new Set([pkg, ...mains].flatMap((holder) => isObject(holder) ? keys(holder) : []))];
  const exported = all.filter((each) => each !== "module.exports");
  const named = exported.filter((each) => isTool(find(pkg, each)));
  // The default is as a rule one of the others again.
  const again = named.some((each) => each !== "default" && find(pkg, each) === find(pkg, "default"));
  const tools = again ? named.filter((each) => each !== "default") : named;
  const functions = exported.filter((each) => typeof find(pkg, each) === "function");
  const about = tools.length
    ? `; its tools are ${listing(tools)}`
    : functions.length
    ? `, and no tools, but the functions ${listing(functions)}`
    : ", and nothing that could be a tool";
  return `${packageName} has no export "${name}"${about}`;
}

function listing(names: string[]): string {
  const more = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : "";
  return names.slice(0, MAX_LISTED).join(", ") + more;
}
