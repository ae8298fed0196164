/** Checks the parameters of a call against the tool's schema, as the AI SDK does. */

import { messageOf } from "./errors.ts";
import type { Tool } from "./resolve.ts";
import { inputSchema, type ZodConverters } from "./schema/main.ts";

const { stringify } = JSON;
const { isArray } = Array;

/** The host lists at most 50 problems, and says if there are more. */
const MAX_PROBLEMS = 51;
const MAX_CHARS = 500;
/** Maximum depth of nested functions that return a schema. */
const MAX_LAZY = 8;

/** Result of the tool's own validator, or the JSON Schema that the host has to check. */
export type ParamsCheck = { problems: string[]; value?: unknown } | { schema: string };

interface Issue {
  path?: unknown;
  message?: unknown;
}

/**
 * Returns undefined if the tool does not describe its parameters. The tool's validator may change `params`.
 */
export async function checkParams(
  tool: Tool,
  params: unknown,
  zod: ZodConverters,
): Promise<ParamsCheck | undefined> {
  let schema: any = tool.inputSchema ?? tool.parameters;
  for (let level = 0; level < MAX_LAZY; level++) {
    const check = await runValidator(schema, params);
    if (check) return check;
    if (typeof schema !== "function") break;
    schema = await schema();
  }
  const json = await inputSchema(tool, zod);
  return json && { schema: stringify(json) };
}

/** Runs the validator of a Zod schema, of a schema of the AI SDK, or of a standard schema. */
async function runValidator(schema: any, params: unknown): Promise<ParamsCheck | undefined> {
  if (typeof schema?.safeParseAsync === "function") {
    const { success, data, error } = await schema.safeParseAsync(params);
    return success ? { problems: [], value: data } : { problems: problemsOf(error) };
  }
  if (typeof schema?.validate === "function" && "jsonSchema" in schema) {
    const { success, value, error } = await schema.validate(params);
    return success ? { problems: [], value } : { problems: problemsOf(error) };
  }
  if (typeof schema?.["~standard"]?.validate === "function") {
    const { issues, value } = await schema["~standard"].validate(params);
    return issues ? { problems: problemsOf({ issues }) } : { problems: [], value };
  }
}

function problemsOf(error: any): string[] {
  const issues: unknown = error?.issues ?? error?.cause?.issues;
  if (!isArray(issues) || !issues.length) return [`params: ${messageOf(error)}`.slice(0, MAX_CHARS)];
  return issues.slice(0, MAX_PROBLEMS).map(describe);
}

function describe(issue: Issue): string {
  const { path, message } = Object(issue) as Issue;
  const where = isArray(path) ? path.slice(0, 50).map(step).join("") : "";
  return `params${where}: ${typeof message === "string" && message ? message : "is not valid"}`
    .slice(0, MAX_CHARS).toWellFormed();
}

/** Formats one step of a path. In a standard schema, a step may be an object with a `key`. */
function step(value: unknown): string {
  const key = typeof value === "object" && value !== null ? (value as { key?: unknown }).key : value;
  if (typeof key === "number") return `[${key}]`;
  const name = String(key);
  return /^[\w$-]+$/.test(name) ? `.${name}` : `[${stringify(name)}]`;
}
