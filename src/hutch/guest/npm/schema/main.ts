/** Finds the JSON Schema of a tool's input. */

import { fromZod4, isZod3, isZod4, type JsonSchema, shapeFromZod4 } from "./zod4.ts";
import type { Tool } from "../resolve.ts";
import type { Zod3Converter } from "./zod3/convert.ts";

const { parse, stringify } = JSON;

/** The function `toJSONSchema` of one copy of Zod 4. */
export type Zod4Converter = (schema: unknown, options: unknown) => unknown;

/** Converters by version of Zod. Each is loaded only when a tool has a schema of that version. */
export interface ZodConverters {
  /** Loads the converter of the Zod 4 that the package uses, if it uses one. */
  zod4: () => Promise<Zod4Converter | undefined>;
  zod3: () => Zod3Converter;
}

/** Maximum depth of schemas that wrap other schemas. */
const MAX_WRAPPED = 8;
/**
 * Describes the input: properties with a default are optional; types that JSON cannot represent accept
 * anything.
 */
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
  zod: ZodConverters,
): Promise<JsonSchema | undefined> {
  for (const value of [tool.inputSchema, tool.parameters]) {
    const schema = await read(value, zod, 0);
    if (schema) return schema;
  }
}

async function read(
  value: unknown,
  zod: ZodConverters,
  depth: number,
): Promise<JsonSchema | undefined> {
  if (value === null || (typeof value !== "object" && typeof value !== "function")) return undefined;
  if (depth > MAX_WRAPPED) return undefined;
  const schema = value as any;
  const sources: (() => unknown)[] = [
    () =>
      typeof schema.toJSONSchema === "function" && schema.toJSONSchema(isZod4(schema) ? AS_INPUT : undefined),
    () => typeof schema.jsonSchema === "function" ? schema.jsonSchema() : schema.jsonSchema,
    async () => await read(schema.schema, zod, depth + 1),
    async () => schema._zod && (await zod.zod4())?.(schema, AS_INPUT),
    () => isZod4(schema) ? fromZod4(schema) : isZod3(schema) && zod.zod3().fromSchema(schema),
    () => schema["~standard"]?.jsonSchema?.input?.({ target: "draft-2020-12" }),
    () =>
      hasOnly(schema, isZod4)
        ? shapeFromZod4(schema)
        : hasOnly(schema, isZod3) && zod.zod3().fromShape(schema),
    () => isJsonSchema(schema) && schema,
    // The AI SDK's lazy schemas are functions that return the schema.
    async () => typeof schema === "function" && await read(await schema(), zod, depth + 1),
  ];
  for (const source of sources) {
    const found = await asData(source);
    if (found) return found;
  }
}

/** Returns the schema as plain data, or undefined if it is not an object or the source throws. */
async function asData(source: () => unknown): Promise<JsonSchema | undefined> {
  try {
    const value = parse(stringify(await source()) ?? "null");
    return typeof value === "object" && !Array.isArray(value) ? value ?? undefined : undefined;
  } catch {
    return undefined;
  }
}

function hasOnly(value: Record<string, unknown>, test: (member: unknown) => boolean): boolean {
  const members = Object.values(value);
  return members.length > 0 && members.every(test);
}

function isJsonSchema(value: object): boolean {
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return false;
  const names = Object.keys(value);
  return typeof value === "object" && (names.length === 0 || KEYWORDS.some((name) => names.includes(name)));
}
