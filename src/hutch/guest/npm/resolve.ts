/** Finds a tool by name in the exports of a package. */

import { messageOf, ToolError, toToolError } from "./errors.ts";

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
/** Maximum number of names that `listTools` returns. */
const MAX_NAMES = 100;

/** Returns the tool `name`. Calls a factory, with `env` if it needs a configuration. Throws ToolError. */
export async function resolve(
  pkg: Exports,
  name: string,
  env: Record<string, string>,
  packageName: string,
): Promise<Tool> {
  const [candidate] = candidates(pkg, name);
  if (!candidate) throw new ToolError("tool_not_found", notFound(pkg, name, packageName));
  const { value } = candidate;
  if (isTool(value)) return value;
  const label = `Export "${name}" of ${packageName}`;
  if (typeof value !== "function" || isClass(value)) throw invalid(`${label} is ${describe(value)}`);
  return await callFactory(value as Factory, env, label, packageName);
}

export function isTool(value: unknown): value is Tool {
  return isObject(value) && typeof (value as Partial<Tool>).execute === "function";
}

interface Candidate {
  value: unknown;
}

/**
 * Returns the exports that the name can refer to, the best match first. Ignores inherited properties such as
 * `toString`.
 */
function candidates(pkg: Exports, name: string): Candidate[] {
  const defaults = defaultExports(pkg);
  if (name === "default") return defaults;
  const found = [own(pkg, name), ...defaults.map(({ value }) => member(value, name))].flat();
  if (defaults[0] && ownNames(defaults[0].value).includes(name)) found.push(defaults[0]);
  // Sort null and undefined last.
  return found.sort((one, other) => Number(one.value == null) - Number(other.value == null));
}

function find(pkg: Exports, name: string): unknown {
  return candidates(pkg, name)[0]?.value;
}

/**
 * Returns the default exports: CommonJS that was compiled from an ES module has a second default export
 * inside the first.
 */
function defaultExports(pkg: Exports): Candidate[] {
  const [outer] = own(pkg, "default");
  if (!outer) return [];
  const inner = own(outer.value, "default");
  return isTool(outer.value) ? [outer, ...inner] : [...inner, outer];
}

/** Returns the values of the properties that name a default export. */
function ownNames(exported: unknown): unknown[] {
  return ["name", "toolName", "id"].flatMap((name) => own(exported, name)).map(({ value }) => value);
}

/**
 * Returns a member of an export. Members of a tool or a function, such as `execute` and `name`, count only if
 * they are tools.
 */
function member(exported: unknown, name: string): Candidate[] {
  const found = own(exported, name);
  const isPart = isTool(exported) || typeof exported === "function";
  return isPart ? found.filter(({ value }) => isTool(value)) : found;
}

function own(holder: unknown, name: string): Candidate[] {
  return isObject(holder) && hasOwn(holder, name) ? [{ value: (holder as Exports)[name] }] : [];
}

function isObject(value: unknown): value is object {
  return (typeof value === "object" && value !== null) || typeof value === "function";
}

function isClass(value: unknown): boolean {
  return typeof value === "function" && apply(sourceOf, value, []).startsWith("class");
}

/** Calls a factory with no argument, with `env`, or with an API key from it, until it returns a tool. */
async function callFactory(
  factory: Factory,
  env: Record<string, string>,
  label: string,
  packageName: string,
): Promise<Tool> {
  const key = keys(env).find((name) => name.includes("API_KEY"));
  const attempts = [[], [{ ...env }], ...(key ? [[{ apiKey: env[key] }]] : [])];
  const errors: unknown[] = [];
  let firstResult: { value: unknown } | undefined;
  for (const args of attempts) {
    try {
      const value = await factory(...args);
      if (isTool(value)) return value;
      firstResult ??= { value };
    } catch (error) {
      errors.push(error);
    }
  }
  if (firstResult) throw invalid(`${label} is a function that returns ${describe(firstResult.value)}`);
  // Report the first error that is not a TypeError, because a factory throws such an error to say what it
  // needs. Functions that are not factories throw a TypeError such as "Cannot read properties of undefined".
  const reported = errors.find((error) => !(error instanceof TypeError));
  if (reported === undefined) throw invalid(`${label} is a function that throws ${messageOf(errors.at(-1))}`);
  throw toToolError("configuration_required", reported, packageName);
}

function invalid(problem: string): ToolError {
  return new ToolError("tool_invalid", `${problem}, not a tool with an execute() method`);
}

function describe(value: unknown): string {
  if (value === undefined || value === null) return String(value);
  if (isArray(value)) return "an array";
  if (typeof value === "function") return isClass(value) ? "a class" : "a function";
  if (typeof value !== "object") return `a ${typeof value}`;
  const listed = listing(keys(value));
  return listed ? `an object with ${listed}` : "an empty object";
}

/** Returns the names of all tools. Factories are not called and not listed. Throws ToolError if there are none. */
export function listTools(pkg: Exports, packageName: string): string[] {
  const tools = toolNames(pkg);
  if (tools.length) return tools.slice(0, MAX_NAMES);
  throw new ToolError(
    "tool_not_found",
    `${packageName} has no exports with an execute() method${noTools(pkg)}`,
  );
}

function notFound(pkg: Exports, name: string, packageName: string): string {
  const tools = toolNames(pkg);
  const about = tools.length ? `; its tools are ${listing(tools)}` : noTools(pkg);
  return `${packageName} has no export "${name}"${about}`;
}

function toolNames(pkg: Exports): string[] {
  const tools = exportNames(pkg).filter((key) => isTool(find(pkg, key)));
  // Leave out the default export if it is also exported under another name.
  const isDuplicate = tools.some((tool) => tool !== "default" && find(pkg, tool) === find(pkg, "default"));
  return isDuplicate ? tools.filter((tool) => tool !== "default") : tools;
}

function noTools(pkg: Exports): string {
  const functions = exportNames(pkg).filter((key) => typeof find(pkg, key) === "function");
  if (!functions.length) return ", and nothing that could be a tool";
  return `, and no tools, but the functions ${listing(functions)}`;
}

function exportNames(pkg: Exports): string[] {
  const defaults = defaultExports(pkg).map(({ value }) => value).filter((value) => !isTool(value));
  const names = new Set([pkg, ...defaults].flatMap((holder) => isObject(holder) ? keys(holder) : []));
  names.delete("module.exports");
  return [...names];
}

function listing(names: string[]): string {
  const more = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : "";
  return names.slice(0, MAX_LISTED).join(", ") + more;
}
