/** What a tool takes becomes plain JSON Schema, wherever and however the tool says it. */

import assert from "node:assert";
import { type Converter, inputSchema } from "../npm/schema.ts";
import { fromZod } from "../npm/zod.ts";

const execute = () => 1;
const OBJECT = { type: "object", properties: { q: { type: "string" } } };

async function read(said: Record<string, unknown>, zod: Converter = undefined) {
  return await inputSchema({ execute, ...said }, () => Promise.resolve(zod));
}

const SOURCES: [what: string, said: unknown][] = [
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
  ["a function that gives one", () => ({ jsonSchema: OBJECT })],
  ["a standard schema", { "~standard": { jsonSchema: { input: () => OBJECT } } }],
  ["JSON Schema itself", OBJECT],
  ["the next source when the first fails", {
    toJSONSchema() {
      throw new Error("not this");
    },
    jsonSchema: OBJECT,
  }],
];

for (const [what, said] of SOURCES) {
  Deno.test(`a schema comes from ${what}`, async () => {
    assert.deepStrictEqual(await read({ inputSchema: said }), OBJECT);
    assert.deepStrictEqual(await read({ parameters: said }), OBJECT);
  });
}

Deno.test("inputSchema comes before parameters", async () => {
  assert.deepStrictEqual(await read({ inputSchema: OBJECT, parameters: { type: "object" } }), OBJECT);
});

for (
  const said of [undefined, null, "text", 5, [1], { q: "string" }, new Date(), () => 1]
) {
  Deno.test(`no schema comes from ${Deno.inspect(said)}`, async () => {
    assert.strictEqual(await read({ inputSchema: said }), undefined);
  });
}

Deno.test("a schema that wraps itself ends", async () => {
  const round: Record<string, unknown> = {};
  round.schema = round;
  await read({ inputSchema: round });
});

const four = (def: object, more: object = {}) => ({ _zod: { def, ...more } });
const three = (typeName: string, def: object = {}) => ({ _def: { typeName, ...def } });

Deno.test("Zod 4 is asked to convert its own, as an input", async () => {
  const schema = four({ type: "string" });
  const zod: Converter = (given, options) => {
    assert.strictEqual(given, schema);
    assert.deepStrictEqual(options, { io: "input", unrepresentable: "any" });
    return OBJECT;
  };
  assert.deepStrictEqual(await read({ inputSchema: schema }, zod), OBJECT);
});

Deno.test("a Zod 4 that cannot be asked is converted all the same", async () => {
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
      catchall: three("ZodNever"),
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

Deno.test("an object of Zod schemas is what it looks like", async () => {
  assert.deepStrictEqual(await read({ parameters: { q: text } }), { ...OBJECT, required: ["q"] });
});

Deno.test("a schema that contains itself refers to where it began", () => {
  const node: any = three("ZodObject", {
    shape: () => ({ "a/b": three("ZodArray", { type: three("ZodLazy", { getter: () => node }) }) }),
  });
  const outer: any = three("ZodObject", { shape: () => ({ "x~y": node }) });
  assert.deepStrictEqual((fromZod(outer) as any).properties["x~y"].properties["a/b"].items, {
    $ref: "#/properties/x~0y",
  });
});
