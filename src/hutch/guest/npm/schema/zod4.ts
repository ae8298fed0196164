/** Converts Zod 4 schemas to JSON Schema if the package's Zod 4 cannot be imported, such as a bundled one. */

export type JsonSchema = Record<string, unknown>;

interface Definition {
  [field: string]: any;
}

interface Zod4 {
  _zod: { def: Definition; optin?: string };
  description?: unknown;
}

/**
 * Position in the traversal: the JSON pointer of the current schema, and the JSON pointers of the schemas
 * around it.
 */
interface Position {
  path: string;
  ancestors: Map<unknown, string>;
}

type Convert = (def: Definition, at: Position) => JsonSchema;

export function isZod4(value: unknown): value is Zod4 {
  return typeof (value as Partial<Zod4> | null)?._zod?.def?.type === "string";
}

export function isZod3(value: unknown): boolean {
  return typeof (value as { _def?: Definition } | null)?._def?.typeName === "string";
}

/** Returns the JSON Schema of the input that a schema accepts. */
export function fromZod4(zod: Zod4): JsonSchema {
  return convert(zod, { path: "#", ancestors: new Map() });
}

/** Converts an object whose properties are Zod schemas. */
export function shapeFromZod4(shape: Record<string, Zod4>): JsonSchema {
  return object({ shape }, { path: "#", ancestors: new Map() });
}

function typeOf(zod: Zod4): string {
  return zod._zod.def.type;
}

function convert(zod: Zod4, { path, ancestors }: Position): JsonSchema {
  if (!isZod4(zod)) return {};
  const reference = ancestors.get(zod);
  if (reference !== undefined) return { $ref: reference };
  const { def } = zod._zod;
  const schema = CONVERTERS[def.type]?.(def, { path, ancestors: new Map(ancestors).set(zod, path) }) ?? {};
  const description = def.description ?? zod.description;
  return typeof description === "string" ? { ...schema, description } : schema;
}

function convertChild(zod: Zod4, { path, ancestors }: Position, ...steps: (string | number)[]): JsonSchema {
  const escaped = steps.map((step) => `/${String(step).replaceAll("~", "~0").replaceAll("/", "~1")}`);
  return convert(zod, { path: path + escaped.join(""), ancestors });
}

function isOptional(zod: Zod4): boolean {
  return zod._zod.optin !== undefined;
}

function object({ shape, catchall }: Definition, at: Position): JsonSchema {
  const names = Object.keys(shape);
  const required = names.filter((name) => !isOptional(shape[name]));
  const properties = Object.fromEntries(
    names.map((name) => [name, convertChild(shape[name], at, "properties", name)]),
  );
  return {
    type: "object",
    properties,
    ...(required.length ? { required } : {}),
    ...(catchall ? { additionalProperties: additionalProperties(catchall, at) } : {}),
  };
}

function additionalProperties(catchall: Zod4, at: Position): JsonSchema | false {
  return typeOf(catchall) !== "never" && convertChild(catchall, at, "additionalProperties");
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

/** Returns the checks of a schema. A schema such as `z.email()` is itself one of its checks. */
function checksOf(def: Definition): Definition[] {
  const checks = (def.checks ?? []).map((check: any) => check._zod?.def ?? check);
  return def.check ? [def, ...checks] : checks;
}

function string(def: Definition): JsonSchema {
  const schema: JsonSchema = { type: "string", ...lengths(def, "minLength", "maxLength") };
  const patterns: string[] = [];
  for (const { check, format, pattern } of checksOf(def)) {
    if (check !== "string_format") continue;
    // For a known format, use `format` instead of the pattern.
    if (FORMATS[format]) schema.format = FORMATS[format];
    else if (pattern) patterns.push(pattern.source);
  }
  if (patterns.length === 1) schema.pattern = patterns[0];
  if (patterns.length > 1) schema.allOf = patterns.map((pattern) => ({ pattern }));
  return schema;
}

function lengths(def: Definition, min: string, max: string): JsonSchema {
  const schema: JsonSchema = {};
  for (const { check, minimum, maximum, length } of checksOf(def)) {
    if (check === "min_length") schema[min] = minimum;
    if (check === "max_length") schema[max] = maximum;
    if (check === "length_equals") schema[min] = schema[max] = length;
  }
  return schema;
}

function number(def: Definition): JsonSchema {
  const schema: JsonSchema = { type: "number" };
  for (const { check, format, value, inclusive } of checksOf(def)) {
    if (check === "number_format" && format.includes("int")) schema.type = "integer";
    if (check === "greater_than") schema[inclusive ? "minimum" : "exclusiveMinimum"] = value;
    if (check === "less_than") schema[inclusive ? "maximum" : "exclusiveMaximum"] = value;
    if (check === "multiple_of") schema.multipleOf = value;
  }
  return schema;
}

function array(def: Definition, at: Position): JsonSchema {
  const items = convertChild(def.element, at, "items");
  return { type: "array", items, ...lengths(def, "minItems", "maxItems") };
}

/** Returns a schema for a list of allowed values. It has a `type` if all values have the same type. */
function oneOf(values: unknown[]): JsonSchema {
  const types = new Set(values.map((value) => value === null ? "null" : typeof value));
  const [type] = types;
  return {
    ...(types.size === 1 ? { type } : {}),
    ...(values.length === 1 ? { const: values[0] } : { enum: values }),
  };
}

/** Converts an enum. Leaves out the reverse mappings (from value to name) of a numeric TypeScript enum. */
function enumeration({ entries }: Definition): JsonSchema {
  const names = Object.keys(entries).filter((name) => typeof entries[entries[name]] !== "number");
  return oneOf(names.map((name) => entries[name]));
}

function union({ options }: Definition, at: Position): JsonSchema {
  return { anyOf: options.map((option: Zod4, i: number) => convertChild(option, at, "anyOf", i)) };
}

function record({ keyType, valueType }: Definition, at: Position): JsonSchema {
  const values = convertChild(valueType, at, "additionalProperties");
  const names = keyType && typeOf(keyType) !== "string" ? convertChild(keyType, at, "propertyNames") : {};
  return {
    type: "object",
    additionalProperties: values,
    ...(Object.keys(names).length ? { propertyNames: names } : {}),
  };
}

function tuple(def: Definition, at: Position): JsonSchema {
  const items: Zod4[] = def.items;
  return {
    type: "array",
    prefixItems: items.map((item, i) => convertChild(item, at, "prefixItems", i)),
    items: def.rest ? convertChild(def.rest, at, "items") : false,
    minItems: items.filter((item) => !isOptional(item)).length,
    ...(def.rest ? {} : { maxItems: items.length }),
  };
}

function nullable({ innerType }: Definition, at: Position): JsonSchema {
  return { anyOf: [convertChild(innerType, at, "anyOf", 0), { type: "null" }] };
}

function withDefault(def: Definition, at: Position): JsonSchema {
  const { defaultValue } = def;
  return {
    ...inner(def, at),
    default: typeof defaultValue === "function" ? defaultValue() : defaultValue,
  };
}

/**
 * Converts the schema that another schema wraps. Of a pipe, converts the schema of the input. If that is a
 * transform, which accepts anything, converts the schema of the output instead.
 */
function inner({ innerType, in: first, out, getter }: Definition, at: Position): JsonSchema {
  const input = isZod4(first) && typeOf(first) === "transform" ? undefined : first;
  return convert([innerType, input, out].find(isZod4) ?? getter?.(), at);
}

const CONVERTERS: Record<string, Convert> = {
  string,
  number,
  object,
  array,
  union,
  record,
  tuple,
  nullable,
  bigint: () => ({ type: "integer" }),
  boolean: () => ({ type: "boolean" }),
  date: () => ({ type: "string", format: "date-time" }),
  null: () => ({ type: "null" }),
  never: () => ({ not: {} }),
  literal: ({ values }) => oneOf(values),
  enum: enumeration,
  set: ({ valueType }, at) => ({
    type: "array",
    uniqueItems: true,
    items: convertChild(valueType, at, "items"),
  }),
  intersection: ({ left, right }, at) => ({
    allOf: [convertChild(left, at, "allOf", 0), convertChild(right, at, "allOf", 1)],
  }),
  default: withDefault,
  prefault: withDefault,
  optional: inner,
  nonoptional: inner,
  catch: inner,
  readonly: inner,
  pipe: inner,
  promise: inner,
  lazy: inner,
};
