/**
 * Zod's schemas as JSON Schema, for what Zod cannot convert itself: all of Zod 3, and a Zod 4 that a
 * package carries inside. Both describe a schema by a definition with nearly the same fields.
 */

export type JsonSchema = Record<string, unknown>;

interface Definition {
  [field: string]: any;
}

interface Zod {
  _def?: Definition;
  _zod?: { def: Definition; optin?: string };
  description?: unknown;
}

/** The part of a walk that is being converted: which schemas it is inside of, and where each began. */
interface Place {
  path: string;
  above: Map<unknown, string>;
}

type Convert = (def: Definition, at: Place) => JsonSchema;

export function isZod(value: unknown): value is Zod {
  if (typeof value !== "object" || value === null) return false;
  const { _def, _zod } = value as Zod;
  return typeof _zod?.def?.type === "string" || typeof _def?.typeName === "string";
}

/** JSON Schema of what a Zod schema takes as its input. */
export function fromZod(zod: Zod): JsonSchema {
  return convert(zod, { path: "#", above: new Map() });
}

/** An object whose properties are Zod schemas. */
export function fromShape(shape: Record<string, Zod>): JsonSchema {
  return object({ shape }, { path: "#", above: new Map() });
}

function definition(zod: Zod): Definition {
  return zod._zod?.def ?? zod._def!;
}

/** "ZodNativeEnum" of Zod 3 and "enum" of Zod 4 in one spelling. */
function kind(zod: Zod): string {
  return zod._zod ? zod._zod.def.type : zod._def!.typeName.replace(/^Zod/, "").toLowerCase();
}

function convert(zod: Zod, { path, above }: Place): JsonSchema {
  if (!isZod(zod)) return {};
  const known = above.get(zod);
  if (known !== undefined) return { $ref: known };
  const at = { path, above: new Map(above).set(zod, path) };
  const schema = KINDS[kind(zod)]?.(definition(zod), at) ?? {};
  const description = definition(zod).description ?? zod.description;
  return typeof description === "string" ? { ...schema, description } : schema;
}

function inside(zod: Zod, { path, above }: Place, ...steps: (string | number)[]): JsonSchema {
  const escaped = steps.map((step) => `/${String(step).replaceAll("~", "~0").replaceAll("/", "~1")}`);
  return convert(zod, { path: path + escaped.join(""), above });
}

/** Whether a property of this schema may be left out. */
function isOptional(zod: Zod): boolean {
  if (zod._zod) return zod._zod.optin !== undefined;
  const { innerType, schema, type, getter } = definition(zod);
  switch (kind(zod)) {
    case "optional":
    case "default":
    case "catch":
    case "any":
    case "unknown":
    case "undefined":
    case "void":
      return true;
    case "nullable":
    case "readonly":
    case "effects":
    case "branded":
      return isOptional(innerType ?? schema ?? type);
    case "lazy":
      return isOptional(getter());
    default:
      return false;
  }
}

function object(def: Definition, at: Place): JsonSchema {
  const shape: Record<string, Zod> = typeof def.shape === "function" ? def.shape() : def.shape;
  const names = Object.keys(shape);
  const required = names.filter((name) => !isOptional(shape[name]));
  const properties = Object.fromEntries(
    names.map((name) => [name, inside(shape[name], at, "properties", name)]),
  );
  const rest = def.catchall && kind(def.catchall) !== "never"
    ? inside(def.catchall, at, "additionalProperties")
    : def.unknownKeys === "strict" || def.catchall && def.unknownKeys === undefined
    ? false
    : undefined;
  return {
    type: "object",
    properties,
    ...(required.length ? { required } : {}),
    ...(rest === undefined ? {} : { additionalProperties: rest }),
  };
}

const FORMATS: Record<string, string> = {
  email: "email",
  url: "uri",
  uuid: "uuid",
  guid: "uuid",
  datetime: "date-time",
  date: "date",
  time: "time",
  duration: "duration",
  ipv4: "ipv4",
  ipv6: "ipv6",
};

interface Check {
  kind: string;
  value?: any;
  inclusive?: boolean;
  regex?: RegExp;
  version?: string;
}

/** The checks in Zod 3's words. In Zod 4 a schema can be a check itself, such as `z.email()`. */
function checks(def: Definition): Check[] {
  const listed: Definition[] = (def.checks ?? []).map((check: any) => check._zod?.def ?? check);
  return [...(def.check ? [def] : []), ...listed].map((check) =>
    RENAMED[check.check]?.(check) ?? check as Check
  );
}

const RENAMED: Record<string, (check: Definition) => Check> = {
  min_length: ({ minimum }) => ({ kind: "min", value: minimum }),
  max_length: ({ maximum }) => ({ kind: "max", value: maximum }),
  length_equals: ({ length }) => ({ kind: "length", value: length }),
  greater_than: ({ value, inclusive }) => ({ kind: "min", value, inclusive }),
  less_than: ({ value, inclusive }) => ({ kind: "max", value, inclusive }),
  multiple_of: ({ value }) => ({ kind: "multipleOf", value }),
  number_format: ({ format }) => ({ kind: format.includes("int") ? "int" : format }),
  // What a pattern adds to a known format is no more than its definition.
  string_format: ({ format, pattern }) => ({
    kind: !FORMATS[format] && pattern ? "regex" : format,
    regex: pattern,
  }),
};

function quoted(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}

function string(def: Definition): JsonSchema {
  const schema: JsonSchema = { type: "string" };
  const patterns: string[] = [];
  for (const { kind, value, regex, version } of checks(def)) {
    if (kind === "min" || kind === "length") schema.minLength = value;
    if (kind === "max" || kind === "length") schema.maxLength = value;
    if (kind === "regex") patterns.push(regex!.source);
    if (kind === "startsWith") patterns.push(`^${quoted(value)}`);
    if (kind === "endsWith") patterns.push(`${quoted(value)}$`);
    if (kind === "includes") patterns.push(quoted(value));
    const format = kind === "ip" ? version && `ip${version}` : FORMATS[kind];
    if (format) schema.format = format;
  }
  if (patterns.length === 1) schema.pattern = patterns[0];
  if (patterns.length > 1) schema.allOf = patterns.map((pattern) => ({ pattern }));
  return schema;
}

function number(def: Definition): JsonSchema {
  const schema: JsonSchema = { type: "number" };
  for (const { kind, value, inclusive } of checks(def)) {
    if (kind === "int") schema.type = "integer";
    if (kind === "min") schema[inclusive ? "minimum" : "exclusiveMinimum"] = value;
    if (kind === "max") schema[inclusive ? "maximum" : "exclusiveMaximum"] = value;
    if (kind === "multipleOf") schema.multipleOf = value;
  }
  return schema;
}

function array(def: Definition, at: Place): JsonSchema {
  const schema: JsonSchema = { type: "array", items: inside(def.element ?? def.type, at, "items") };
  const { exactLength, minLength, maxLength } = def;
  const counted = [["length", exactLength], ["min", minLength], ["max", maxLength]] as const;
  const own = counted.flatMap(([kind, set]) => set ? [{ kind, value: set.value }] : []);
  for (const { kind, value } of [...own, ...checks(def)]) {
    if (kind === "min" || kind === "length") schema.minItems = value;
    if (kind === "max" || kind === "length") schema.maxItems = value;
  }
  return schema;
}

/** One of some values, and their type where they have one. */
function oneOf(values: unknown[]): JsonSchema {
  const types = new Set(values.map((value) => value === null ? "null" : typeof value));
  const [type] = types;
  return {
    ...(types.size === 1 ? { type } : {}),
    ...(values.length === 1 ? { const: values[0] } : { enum: values }),
  };
}

/** A TypeScript enum of numbers also has its names as values. */
function enumeration(def: Definition): JsonSchema {
  const values = def.values ?? def.entries;
  if (Array.isArray(values)) return { type: "string", enum: values };
  const names = Object.keys(values).filter((name) => typeof values[values[name]] !== "number");
  return oneOf(names.map((name) => values[name]));
}

function union(def: Definition, at: Place): JsonSchema {
  const options: Zod[] = [...(def.options instanceof Map ? def.options.values() : def.options)];
  return { anyOf: options.map((option, i) => inside(option, at, "anyOf", i)) };
}

function record(def: Definition, at: Place): JsonSchema {
  const values = inside(def.valueType, at, "additionalProperties");
  const names = def.keyType && kind(def.keyType) !== "string" ? inside(def.keyType, at, "propertyNames") : {};
  return {
    type: "object",
    additionalProperties: values,
    ...(Object.keys(names).length ? { propertyNames: names } : {}),
  };
}

function tuple(def: Definition, at: Place): JsonSchema {
  const items: Zod[] = def.items;
  return {
    type: "array",
    prefixItems: items.map((item, i) => inside(item, at, "prefixItems", i)),
    items: def.rest ? inside(def.rest, at, "items") : false,
    minItems: items.filter((item) => !isOptional(item)).length,
    ...(def.rest ? {} : { maxItems: items.length }),
  };
}

function nullable(def: Definition, at: Place): JsonSchema {
  return { anyOf: [inside(def.innerType, at, "anyOf", 0), { type: "null" }] };
}

function defaulted(def: Definition, at: Place): JsonSchema {
  const { defaultValue } = def;
  return {
    ...inner(def, at),
    default: typeof defaultValue === "function" ? defaultValue() : defaultValue,
  };
}

/** What has no say of its own in what is taken. Of two in a row that is the first, unless it takes anything. */
function inner(def: Definition, at: Place): JsonSchema {
  const { innerType, schema, type, out, getter } = def;
  const first = isZod(def.in) && kind(def.in) === "transform" ? undefined : def.in;
  return convert([innerType, schema, first, out, type].find(isZod) ?? getter?.(), at);
}

const KINDS: Record<string, Convert> = {
  string,
  number,
  object,
  array,
  union,
  record,
  tuple,
  nullable,
  discriminatedunion: union,
  bigint: () => ({ type: "integer" }),
  boolean: () => ({ type: "boolean" }),
  date: () => ({ type: "string", format: "date-time" }),
  null: () => ({ type: "null" }),
  never: () => ({ not: {} }),
  literal: (def) => oneOf(def.values ?? [def.value]),
  enum: enumeration,
  nativeenum: enumeration,
  set: (def, at) => ({ type: "array", uniqueItems: true, items: inside(def.valueType, at, "items") }),
  intersection: (def, at) => ({
    allOf: [inside(def.left, at, "allOf", 0), inside(def.right, at, "allOf", 1)],
  }),
  default: defaulted,
  prefault: defaulted,
  optional: inner,
  nonoptional: inner,
  catch: inner,
  readonly: inner,
  branded: inner,
  effects: inner,
  pipe: inner,
  pipeline: inner,
  promise: inner,
  lazy: inner,
};
