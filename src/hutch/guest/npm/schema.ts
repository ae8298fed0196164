/** What a tool takes, as JSON Schema, from wherever it says so. */

import { fromShape, fromZod, isZod, type JsonSchema } from "./zod.ts";
import type { Tool } from "./resolve.ts";

const { parse, stringify } = JSON;

/** Zod's own converter, of the copy that a package uses; undefined where it has none. */
export type Converter = ((schema: unknown, options: unknown) => unknown) | undefined;

/** How far schemas may wrap schemas. */
const MAX_WRAPPED = 8;
/** What a tool takes: a property with a default may be left out, what has no JSON is anything. */
const AS_INPUT = { io: "input", unrepresentable: "any" };
const KEYWORDS = [
  "$ref",
  "$schema",
  "additionalProperties",
  "allOf",
  "anyOf",
  "const",
  "enum",
  "items",
  "not",
  "oneOf",
  "properties",
  "type",
];

export async function inputSchema(
  tool: Tool,
  zod: () => Promise<Converter>,
): Promise<JsonSchema | undefined> {
  for (const said of [tool.inputSchema, tool.parameters]) {
    const schema = await read(said, zod, 0);
    if (schema) return schema;
  }
}

async function read(
  said: unknown,
  zod: () => Promise<Converter>,
  depth: number,
): Promise<JsonSchema | undefined> {
  if (said === null || (typeof said !== "object" && typeof said !== "function")) return undefined;
  if (depth > MAX_WRAPPED) return undefined;
  const schema = said as any;
  const sources: (() => unknown)[] = [
    () =>
      typeof schema.toJSONSchema === "function" && schema.toJSONSchema(isZod(schema) ? AS_INPUT : undefined),
    () => typeof schema.jsonSchema === "function" ? schema.jsonSchema() : schema.jsonSchema,
    async () => await read(schema.schema, zod, depth + 1),
    async () => schema._zod && (await zod())?.(schema, AS_INPUT),
    () => isZod(schema) && fromZod(schema),
    () => schema["~standard"]?.jsonSchema?.input?.({ target: "draft-2020-12" }),
    () => isShape(schema) && fromShape(schema),
    () => isJsonSchema(schema) && schema,
    // The AI SDK's way to put a schema off.
    async () => typeof schema === "function" && await read(await schema(), zod, depth + 1),
  ];
  for (const source of sources) {
    const found = await plain(source);
    if (found) return found;
  }
}

/** As data; undefined for what is none, or cannot be had. */
async function plain(source: () => unknown): Promise<JsonSchema | undefined> {
  try {
    const value = parse(stringify(await source()) ?? "null");
    return typeof value === "object" && !Array.isArray(value) ? value ?? undefined : undefined;
  } catch {
    return undefined;
  }
}

function isShape(value: Record<string, unknown>): boolean {
  const members = Object.values(value);
  return members.length > 0 && members.every(isZod);
}

function isJsonSchema(value: object): boolean {
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return false;
  const names = Object.keys(value);
  return typeof value === "object" && (names.length === 0 || KEYWORDS.some((name) => names.includes(name)));
}
