/** Converts Zod 3 schemas of any copy of Zod to JSON Schema 2020-12, with zod-to-json-schema. */

import { ignoreOverride, type Options, zodToJsonSchema } from "zod-to-json-schema";
import type { JsonSchema } from "../zod4.ts";

export interface Zod3Converter {
  fromSchema(schema: unknown): JsonSchema;
  /** Converts an object whose properties are Zod schemas. */
  fromShape(shape: Record<string, unknown>): JsonSchema;
}

/** Keywords that are followed by a name or an index in a path. */
const KEYWORDS_WITH_MEMBERS = ["properties", "anyOf", "allOf"];

const OPTIONS: Partial<Options<"jsonSchema7">> = {
  pipeStrategy: "input",
  // Zod removes unknown properties by default, so they are allowed in the input.
  removeAdditionalStrategy: "strict",
  allowedAdditionalProperties: undefined,
  // References are made below, and only for recursive schemas, because the library does not escape names in
  // its references.
  $refStrategy: "none",
  override(_def, { currentPath }, seen) {
    const isAncestor = seen?.path.every((step, i) => currentPath[i] === step);
    return isAncestor ? { $ref: pointer(seen!.path) } : ignoreOverride;
  },
  postProcess(schema: any, def: any) {
    if (def.typeName === "ZodLiteral" && def.value === null) return { ...schema, type: "null" };
    if (def.typeName === "ZodMap") return { ...schema, items: tuple(schema.items) };
    if (Array.isArray(schema?.items)) return tuple(schema);
    if (!Array.isArray(schema?.type) || schema.enum) return schema;
    const { type: types, ...rest } = schema;
    return { ...rest, anyOf: types.map((type: string) => ({ type })) };
  },
};

/** Converts a tuple from draft 7 to 2020-12. */
function tuple({ items, additionalItems = false, ...rest }: any): any {
  return { ...rest, prefixItems: items, items: additionalItems };
}

/** Converts a path of the library, which has the keywords of draft 7 for tuples, to a JSON pointer. */
function pointer(path: string[]): string {
  const steps = ["#"];
  for (let i = 1; i < path.length; i++) {
    const isTuple = path[i] === "items" && /^\d+$/.test(path[i + 1] ?? "");
    const hasMembers = isTuple || KEYWORDS_WITH_MEMBERS.includes(path[i]);
    steps.push(isTuple ? "prefixItems" : path[i] === "additionalItems" ? "items" : path[i]);
    if (hasMembers && i + 1 < path.length) steps.push(path[++i].replaceAll("~", "~0").replaceAll("/", "~1"));
  }
  return steps.join("/");
}

export function fromSchema(schema: unknown): JsonSchema {
  const { $schema: _, ...converted } = zodToJsonSchema(schema as any, OPTIONS);
  // Convert bigints, because bounds and defaults of z.bigint() are bigints, which JSON cannot represent.
  return JSON.parse(
    JSON.stringify(converted, (_, value) => typeof value === "bigint" ? Number(value) : value),
  );
}

export function fromShape(shape: Record<string, unknown>): JsonSchema {
  const catchall = { _def: { typeName: "ZodNever" } };
  return fromSchema({ _def: { typeName: "ZodObject", shape: () => shape, unknownKeys: "strip", catchall } });
}
