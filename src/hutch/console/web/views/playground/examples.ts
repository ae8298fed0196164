/** Snippets to start from. */

import type { Schema } from "../../ui/schema_form.tsx";
import type { ToolName } from "./editor.tsx";

export interface Example {
  name: string;
  code: string;
  /** JSON text. */
  inputs?: string;
  /** True if a new playground opens with this snippet instead of the first one. */
  opensFirst?: boolean;
}

export const FIRST: Example = {
  name: "First steps",
  code: `// Ctrl+Enter runs this. The value that is returned is the result.
const squares = [1, 2, 3].map((n) => n * n);
console.log("squares", squares);
return { sum: squares.reduce((a, b) => a + b, 0) };
`,
};

/** For servers with the example tools of `hutch serve --examples`. */
const WITH_TOOLS: Example = {
  name: "Tool calls",
  code: `// Ctrl+Enter runs this. tools.shop stands for one of your MCP servers.
const { articles } = await tools.shop.listArticles({});
const offers = await Promise.all(
  articles.map((article) => tools.shop.getPrice({ article })),
);
console.log("offers", offers);
const order = await tools.shop.order({ article: "lamp", count: 4 });
return order.total;
`,
  opensFirst: true,
};

const OTHERS: Example[] = [
  {
    name: "Inputs and types",
    code: `// \`people\` comes from the inputs below.
interface Person {
  name: string;
  age: number;
}
const adults = (people as Person[]).filter(({ age }) => age >= 18);
return adults.map(({ name }) => name);
`,
    inputs: '{"people": [{"name": "Ada", "age": 36}, {"name": "Bo", "age": 9}]}',
  },
  {
    name: "Files and a chart",
    code: `const sales = [20, 45, 12, 33];
await files.write("sales.csv", sales.join("\\n"));
const bars = sales.map((value, i) =>
  \`<rect x="\${20 + i * 60}" y="\${110 - value * 2}" width="40" height="\${value * 2}" rx="4" fill="#0f9488"/>\`
);
display(\`<svg xmlns="http://www.w3.org/2000/svg" width="280" height="120">\${bars.join("")}</svg>\`, "image/svg+xml");
return sales.length;
`,
  },
  {
    name: "An error with its line",
    code: `const order = { id: 7 };
console.log("order", order);
return order.customer.name;
`,
  },
];

const EXAMPLE_TOOL = "tools.shop.listArticles";

/** Returns the snippet with tool calls for these tools, if there are tools. */
function withTools(tools: ToolName[]): Example | undefined {
  if (tools.some(({ scriptName }) => scriptName === EXAMPLE_TOOL)) return WITH_TOOLS;
  const easiest = [...tools].sort((left, right) => cost(left) - cost(right))[0];
  if (!easiest) return undefined;
  const { scriptName, inputSchema, readOnly } = easiest;
  const caution = readOnly
    ? ""
    : "// Its server does not say that it only reads. Look at it on the page Tools.\n";
  return {
    name: WITH_TOOLS.name,
    code: `// Ctrl+Enter runs this. It calls a tool of one of your MCP servers.
${caution}const answer = await ${scriptName}(${literal(requiredArguments(inputSchema ?? {}))});
console.log("answer", answer);
return answer;
`,
    opensFirst: readOnly,
  };
}

/** Tools that only read come first, and of these the tool that needs the fewest arguments. */
function cost({ readOnly, inputSchema }: ToolName): number {
  return (readOnly ? 0 : 1_000) + (inputSchema?.required?.length ?? 0);
}

function requiredArguments(schema: Schema): Record<string, unknown> {
  const entries = (schema.required ?? []).map((name) => [name, sample(schema.properties?.[name] ?? {})]);
  return Object.fromEntries(entries);
}

const SAMPLES: Record<string, unknown> = {
  string: "…",
  integer: 1,
  number: 1,
  boolean: true,
  array: [],
  object: {},
};

function sample(schema: Schema): unknown {
  const { default: usual, examples, enum: options, type } = schema as Schema & { examples?: unknown[] };
  const plain = Array.isArray(type) ? type.find((name) => name !== "null") : type;
  return usual ?? examples?.[0] ?? options?.[0] ?? SAMPLES[plain ?? "string"] ?? null;
}

/** Formats arguments as code: names that are identifiers have no quotation marks. */
function literal(value: Record<string, unknown>): string {
  const fields = Object.entries(value).map(([name, field]) =>
    `${/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name)}: ${JSON.stringify(field)}`
  );
  return fields.length ? `{ ${fields.join(", ")} }` : "{}";
}

export function examples(tools: ToolName[]): Example[] {
  const calls = withTools(tools);
  return [FIRST, ...(calls ? [calls] : []), ...OTHERS];
}
