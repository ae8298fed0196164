/** Tests of finding the JSON Schema of a tool's input. */

import assert from "node:assert";
import { z } from "zod/v3";
import { inputSchema, type Zod4Converter } from "../../npm/schema/main.ts";
import * as zod3 from "../../npm/schema/zod3/convert.ts";

const execute = () => 1;
const OBJECT = { type: "object", properties: { q: { type: "string" } } };

async function read(fields: Record<string, unknown>, zod4?: Zod4Converter) {
  return await inputSchema({ execute, ...fields }, { zod4: () => Promise.resolve(zod4), zod3: () => zod3 });
}

const SOURCES: [what: string, schema: unknown][] = [
  ["toJSONSchema()", { toJSONSchema: () => OBJECT }],
  ["jsonSchema", { jsonSchema: OBJECT }],
  ["jsonSchema()", { jsonSchema: () => OBJECT }],
  ["a promise of jsonSchema", { jsonSchema: Promise.resolve(OBJECT) }],
  ["the AI SDK's jsonSchema getter", {
    [Symbol.for("vercel.ai.schema")]: true,
    get jsonSchema() {
      return OBJECT;
    },
  }],
  ["schema", { schema: OBJECT }],
  ["a schema in a schema", { schema: { jsonSchema: OBJECT } }],
  ["a function that returns one", () => ({ jsonSchema: OBJECT })],
  ["a standard schema", { "~standard": { jsonSchema: { input: () => OBJECT } } }],
  ["JSON Schema itself", OBJECT],
  ["the next source when the first fails", {
    toJSONSchema() {
      throw new Error("not this");
    },
    jsonSchema: OBJECT,
  }],
];

for (const [what, schema] of SOURCES) {
  Deno.test(`a schema comes from ${what}`, async () => {
    assert.deepStrictEqual(await read({ inputSchema: schema }), OBJECT);
    assert.deepStrictEqual(await read({ parameters: schema }), OBJECT);
  });
}

Deno.test("inputSchema takes precedence over parameters", async () => {
  assert.deepStrictEqual(await read({ inputSchema: OBJECT, parameters: { type: "object" } }), OBJECT);
});

for (
  const value of [undefined, null, "text", 5, [1], { q: "string" }, new Date(), () => 1]
) {
  Deno.test(`no schema comes from ${Deno.inspect(value)}`, async () => {
    assert.strictEqual(await read({ inputSchema: value }), undefined);
  });
}

Deno.test("a schema that wraps itself does not loop forever", async () => {
  const round: Record<string, unknown> = {};
  round.schema = round;
  await read({ inputSchema: round });
});

const four = (def: object, more: object = {}) => ({ _zod: { def, ...more } });

const OPTIONAL = ["ZodOptional", "ZodDefault"];
/** A schema with the parts of Zod 3's classes that a converter uses. */
const three = (typeName: string, def: any = {}) => ({
  _def: { typeName, ...def },
  isOptional: () => OPTIONAL.includes(typeName) || OPTIONAL.includes(def.schema?._def.typeName),
});
const NEVER = three("ZodNever");

Deno.test("the package's Zod 4 converts its own schemas as an input", async () => {
  const schema = four({ type: "string" });
  const zod: Zod4Converter = (value, options) => {
    assert.strictEqual(value, schema);
    assert.deepStrictEqual(options, { io: "input", unrepresentable: "any" });
    return OBJECT;
  };
  assert.deepStrictEqual(await read({ inputSchema: schema }, zod), OBJECT);
});

Deno.test("a schema of a Zod 4 that cannot convert it is converted too", async () => {
  const shape = {
    q: four({ type: "string", checks: [{ _zod: { def: { check: "min_length", minimum: 2 } } }] }),
    n: four({ type: "default", innerType: four({ type: "number" }), defaultValue: 3 }, {
      optin: "defaulted",
    }),
    mail: four({ type: "string", check: "string_format", format: "email", pattern: /@/ }),
    size: four({
      type: "number",
      check: "number_format",
      format: "safeint",
      checks: [{ _zod: { def: { check: "greater_than", value: 0, inclusive: false } } }],
    }),
    kind: four({ type: "enum", entries: { a: "a", b: "b" } }),
    one: four({ type: "literal", values: ["x"] }),
    list: four({
      type: "array",
      element: four({ type: "boolean" }),
      checks: [{ _zod: { def: { check: "max_length", maximum: 9 } } }],
    }),
    made: four({ type: "pipe", in: four({ type: "transform" }), out: four({ type: "number" }) }),
  };
  const zod = () => {
    throw new Error("another version");
  };
  assert.deepStrictEqual(await read({ inputSchema: four({ type: "object", shape }) }, zod), {
    type: "object",
    properties: {
      q: { type: "string", minLength: 2 },
      n: { type: "number", default: 3 },
      mail: { type: "string", format: "email" },
      size: { type: "integer", exclusiveMinimum: 0 },
      kind: { type: "string", enum: ["a", "b"] },
      one: { type: "string", const: "x" },
      list: { type: "array", items: { type: "boolean" }, maxItems: 9 },
      made: { type: "number" },
    },
    required: ["q", "mail", "size", "kind", "one", "list", "made"],
  });
});

const text = three("ZodString"), amount = three("ZodNumber");

const ZOD_3: [zod: any, schema: unknown][] = [
  [
    three("ZodString", { checks: [{ kind: "min", value: 1 }, { kind: "url" }], description: "where" }),
    { type: "string", minLength: 1, format: "uri", description: "where" },
  ],
  [
    three("ZodString", { checks: [{ kind: "regex", regex: /^a/ }, { kind: "endsWith", value: "." }] }),
    { type: "string", allOf: [{ pattern: "^a" }, { pattern: "\\.$" }] },
  ],
  [
    three("ZodNumber", { checks: [{ kind: "int" }, { kind: "min", value: 1, inclusive: true }] }),
    { type: "integer", minimum: 1 },
  ],
  [three("ZodBoolean"), { type: "boolean" }],
  [three("ZodDate"), { type: "string", format: "date-time" }],
  [three("ZodNull"), { type: "null" }],
  [three("ZodAny"), {}],
  [three("ZodSomethingNew"), {}],
  [three("ZodLiteral", { value: 5 }), { type: "number", const: 5 }],
  [three("ZodEnum", { values: ["a", "b"] }), { type: "string", enum: ["a", "b"] }],
  [three("ZodNativeEnum", { values: { A: 0, B: 1, 0: "A", 1: "B" } }), { type: "number", enum: [0, 1] }],
  [
    three("ZodArray", { type: text, minLength: { value: 1 }, maxLength: null, exactLength: null }),
    { type: "array", items: { type: "string" }, minItems: 1 },
  ],
  [
    three("ZodTuple", { items: [text, amount], rest: null }),
    {
      type: "array",
      prefixItems: [{ type: "string" }, { type: "number" }],
      items: false,
      minItems: 2,
      maxItems: 2,
    },
  ],
  [
    three("ZodRecord", { keyType: text, valueType: amount }),
    { type: "object", additionalProperties: { type: "number" } },
  ],
  [three("ZodUnion", { options: [text, amount] }), { anyOf: [{ type: "string" }, { type: "number" }] }],
  [three("ZodNullable", { innerType: text }), { anyOf: [{ type: "string" }, { type: "null" }] }],
  [
    three("ZodDefault", { innerType: amount, defaultValue: () => 3 }),
    { type: "number", default: 3 },
  ],
  [three("ZodEffects", { schema: text }), { type: "string" }],
  [three("ZodBranded", { type: text }), { type: "string" }],
  [three("ZodLazy", { getter: () => text }), { type: "string" }],
  [three("ZodPipeline", { in: text, out: amount }), { type: "string" }],
  [
    three("ZodIntersection", { left: text, right: amount }),
    { allOf: [{ type: "string" }, { type: "number" }] },
  ],
  [
    three("ZodObject", {
      shape: () => ({
        must: text,
        may: three("ZodOptional", { innerType: text }),
        either: three("ZodEffects", {
          schema: three("ZodDefault", { innerType: text, defaultValue: () => "" }),
        }),
      }),
      unknownKeys: "strict",
      catchall: NEVER,
      description: "all of it",
    }),
    {
      type: "object",
      properties: {
        must: { type: "string" },
        may: { type: "string" },
        either: { type: "string", default: "" },
      },
      required: ["must"],
      additionalProperties: false,
      description: "all of it",
    },
  ],
];

for (const [zod, schema] of ZOD_3) {
  Deno.test(`Zod 3: ${zod._def.typeName}`, async () => {
    assert.deepStrictEqual(await read({ inputSchema: zod }), schema);
  });
}

Deno.test("an object whose values are Zod schemas is converted to an object schema", async () => {
  assert.deepStrictEqual(await read({ parameters: { q: text } }), { ...OBJECT, required: ["q"] });
  const q = four({ type: "string" });
  assert.deepStrictEqual(await read({ parameters: { q } }), { ...OBJECT, required: ["q"] });
});

Deno.test("a recursive schema refers to its start", async () => {
  const node: any = three("ZodObject", {
    shape: () => ({ "a/b": three("ZodArray", { type: three("ZodLazy", { getter: () => node }) }) }),
    unknownKeys: "strip",
    catchall: NEVER,
  });
  const outer: any = three("ZodObject", {
    shape: () => ({ "x~y": node }),
    unknownKeys: "strip",
    catchall: NEVER,
  });
  const schema: any = await read({ inputSchema: outer });
  assert.deepStrictEqual(schema.properties["x~y"].properties["a/b"].items, { $ref: "#/properties/x~0y" });

  const fourNode: any = four({
    type: "object",
    shape: { "a/b": four({ type: "array", element: four({ type: "lazy", getter: () => fourNode }) }) },
  });
  const fourSchema: any = await read({ inputSchema: four({ type: "object", shape: { "x~y": fourNode } }) });
  assert.deepStrictEqual(fourSchema.properties["x~y"].properties["a/b"].items, { $ref: "#/properties/x~0y" });
});

type Tree = { items: [string, Tree | null] };
const tree: z.ZodType<Tree> = z.object({ items: z.tuple([z.string(), z.lazy(() => tree).nullable()]) });
const name = z.string().min(1);

const REAL_ZOD_3: Record<string, [zod: z.ZodTypeAny, schema: unknown]> = {
  "optional, defaulted and nullable properties": [
    z.object({
      a: z.string(),
      b: z.number().optional(),
      c: z.boolean().default(true),
      d: z.string().nullable(),
    }),
    {
      type: "object",
      properties: {
        a: { type: "string" },
        b: { type: "number" },
        c: { type: "boolean", default: true },
        d: { anyOf: [{ type: "string" }, { type: "null" }] },
      },
      required: ["a", "d"],
    },
  ],
  "unknown properties": [
    z.object({ strict: z.object({}).strict(), loose: z.object({}).passthrough() }),
    {
      type: "object",
      properties: {
        strict: { type: "object", properties: {}, additionalProperties: false },
        loose: { type: "object", properties: {} },
      },
      required: ["strict", "loose"],
    },
  ],
  "a shared schema is not a reference": [
    z.tuple([name, name]).rest(name),
    {
      type: "array",
      prefixItems: [{ type: "string", minLength: 1 }, { type: "string", minLength: 1 }],
      items: { type: "string", minLength: 1 },
      minItems: 2,
    },
  ],
  "a recursive tuple": [
    z.object({ tree }),
    {
      type: "object",
      properties: {
        tree: {
          type: "object",
          properties: {
            items: {
              type: "array",
              prefixItems: [
                { type: "string" },
                { anyOf: [{ $ref: "#/properties/tree" }, { type: "null" }] },
              ],
              items: false,
              minItems: 2,
              maxItems: 2,
            },
          },
          required: ["items"],
        },
      },
      required: ["tree"],
    },
  ],
  "a recursion that starts in a tuple": [
    z.tuple([tree]),
    {
      type: "array",
      prefixItems: [
        {
          type: "object",
          properties: {
            items: {
              type: "array",
              prefixItems: [
                { type: "string" },
                { anyOf: [{ $ref: "#/prefixItems/0" }, { type: "null" }] },
              ],
              items: false,
              minItems: 2,
              maxItems: 2,
            },
          },
          required: ["items"],
        },
      ],
      items: false,
      minItems: 1,
      maxItems: 1,
    },
  ],
  "a map": [
    z.map(z.string(), z.number()),
    {
      type: "array",
      maxItems: 125,
      items: {
        type: "array",
        prefixItems: [{ type: "string" }, { type: "number" }],
        items: false,
        minItems: 2,
        maxItems: 2,
      },
    },
  ],
  "bigint": [z.bigint().min(1n).default(2n), { type: "integer", format: "int64", minimum: 1, default: 2 }],
  "literals": [
    z.union([z.literal("a"), z.literal(null), z.number()]),
    { anyOf: [{ type: "string", const: "a" }, { type: "null" }, { type: "number" }] },
  ],
};

for (const [name, [zod, schema]] of Object.entries(REAL_ZOD_3)) {
  Deno.test(`Zod 3 itself: ${name}`, async () => {
    assert.deepStrictEqual(await read({ inputSchema: zod }), schema);
  });
}
