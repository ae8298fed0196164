/** Snippets to start from. */

import type { ToolName } from "./editor.tsx";

export interface Example {
  name: string;
  code: string;
  /** JSON text. */
  inputs?: string;
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
export const WITH_TOOLS: Example = {
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

export function examples(tools: ToolName[]): Example[] {
  const hasShop = tools.some(({ scriptName }) => scriptName === EXAMPLE_TOOL);
  return [FIRST, ...(hasShop ? [WITH_TOOLS] : []), ...OTHERS];
}
