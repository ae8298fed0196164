/** The parts of an OpenAPI 3.1 document that the page shows. */

export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  oneOf?: Schema[];
  anyOf?: Schema[];
  deprecated?: boolean;
  [keyword: string]: unknown;
}

export interface Parameter {
  name: string;
  in: "path" | "query" | "header";
  required?: boolean;
  description?: string;
  schema: Schema;
}

export interface Media {
  schema?: Schema;
  example?: unknown;
}

export interface Reply {
  $ref?: string;
  description: string;
  content?: Record<string, Media>;
}

export interface Operation {
  operationId: string;
  tags: string[];
  summary: string;
  security: Record<string, string[]>[];
  parameters?: Parameter[];
  requestBody?: { required?: boolean; content: Record<string, Media> };
  responses: Record<string, Reply>;
}

export interface OpenApi {
  info: { title: string; version: string; description: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: {
    schemas: Record<string, Schema>;
    responses: Record<string, Reply>;
    securitySchemes: Record<string, { description: string }>;
  };
}

/** An operation with its place in the document. */
export interface Route {
  method: string;
  path: string;
  operation: Operation;
}

export interface Group {
  tag: string;
  /** Anchor of the group on the page. */
  id: string;
  description: string;
  routes: Route[];
}

export function groupsOf(api: OpenApi): Group[] {
  const groups = new Map<string, Group>(
    api.tags.map(({ name, description }) => [
      name,
      { tag: name, id: name.toLowerCase().replace(/\W+/g, "-"), description, routes: [] },
    ]),
  );
  for (const [path, item] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      groups.get(operation.tags[0])?.routes.push({ method: method.toUpperCase(), path, operation });
    }
  }
  return [...groups.values()];
}

/** Keeps the routes that contain every word of the search. */
export function filterGroups(groups: Group[], search: string): Group[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return groups;
  const matches = (tag: string, { method, path, operation }: Route) => {
    const text = `${tag} ${method} ${path} ${operation.summary}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  return groups
    .map((group) => ({ ...group, routes: group.routes.filter((route) => matches(group.tag, route)) }))
    .filter((group) => group.routes.length);
}

/** Returns a command that sends a request to this server. */
export function curlOf({ method, path, operation }: Route, origin: string): string {
  const parameters = operation.parameters ?? [];
  const target = path.replace(/\{(\w+)\}/g, (_, name) => {
    const examples = parameters.find((each) => each.name === name)?.schema.examples as string[] | undefined;
    return examples?.[0] ?? name.toUpperCase();
  });
  const required = parameters.filter((each) => each.in === "query" && each.required);
  const query = required.map(({ name }) => `${name}=${name.toUpperCase()}`).join("&");
  const media = operation.requestBody?.content["application/json"];
  const streams = Object.values(operation.responses).some((reply) =>
    Object.keys(reply.content ?? {}).join() === "text/event-stream"
  );
  const lines = [`curl${streams ? " -N" : ""} ${shell(`${origin}${target}${query ? `?${query}` : ""}`)}`];
  if (method !== (media ? "POST" : "GET")) lines[0] += ` -X ${method}`;
  if (needsKey(operation)) lines.push(`-H "Authorization: Bearer $HUTCH_API_KEY"`);
  for (const each of parameters) {
    if (each.in === "header" && each.schema.const) {
      lines.push(`-H ${shell(`${each.name}: ${each.schema.const}`)}`);
    }
  }
  if (media?.example !== undefined) {
    lines.push(`-H 'Content-Type: application/json'`, `-d ${shell(formatBody(media.example))}`);
  }
  return lines.join(" \\\n  ");
}

/** Returns true if the server refuses requests without a key. */
export function needsKey({ security }: Operation): boolean {
  return security.length > 0 && security.every((each) => Object.keys(each).length > 0);
}

const MAX_LINE_CHARS = 76;

function formatBody(body: unknown): string {
  const line = JSON.stringify(body);
  return line.length <= MAX_LINE_CHARS ? line : JSON.stringify(body, null, 2);
}

function shell(text: string): string {
  return /^[\w./:@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export function resolve(api: OpenApi, schema: Schema): Schema {
  return schema.$ref ? api.components.schemas[nameOf(schema.$ref)] ?? {} : schema;
}

export function resolveReply(api: OpenApi, reply: Reply): Reply {
  return reply.$ref ? api.components.responses[nameOf(reply.$ref)] : reply;
}

export function nameOf(reference: string): string {
  return reference.slice(reference.lastIndexOf("/") + 1);
}

/** Describes the type of a value in a few words: `string`, `list of User`, `"allow" or "deny"`. */
export function typeOf(schema: Schema): string {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const variants = schema.oneOf ?? schema.anyOf;
  if (variants && !schema.type) return variants.map(typeOf).join(" or ");
  const types = [schema.type ?? []].flat();
  if (!types.length) return "any JSON";
  return types.map((type) => {
    if (type === "array") return schema.items ? `list of ${typeOf(schema.items)}` : "list";
    return type === "string" && schema.format ? String(schema.format) : type;
  }).join(" or ");
}

const BOUNDS: [string, string][] = [
  ["minimum", "≥"],
  ["exclusiveMinimum", ">"],
  ["maximum", "≤"],
  ["minLength", "length ≥"],
  ["maxLength", "length ≤"],
  ["minItems", "items ≥"],
  ["maxItems", "items ≤"],
];

/** Returns the bounds and the default of a value, such as `≥ 1, default 10`. */
export function boundsOf(schema: Schema): string {
  const bounds = BOUNDS.filter(([name]) =>
    schema[name] !== undefined && !(name === "minimum" && !schema[name])
  )
    .map(([name, sign]) => `${sign} ${Number(schema[name]).toLocaleString("en").replaceAll(",", " ")}`);
  if (schema.default !== undefined) bounds.push(`default ${JSON.stringify(schema.default)}`);
  return bounds.join(", ");
}
