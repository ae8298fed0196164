// A plugin for `deno lint` that reports the parts of an outline instead of problems (see checker/deno.py).

const FUNCTIONS = new Set([
  "ArrowFunctionExpression",
  "FunctionDeclaration",
  "FunctionExpression",
  "StaticBlock",
  "TSModuleBlock",
]);
const IMPORTS = new Set(["ImportDeclaration", "TSImportEqualsDeclaration"]);

function kind({ type, isExport }) {
  if (type.includes("Export") || isExport) return "export";
  return IMPORTS.has(type) ? "import" : "other";
}

function create(context) {
  const report = (node, value) => context.report({ node, message: JSON.stringify(value) });
  const specifier = (node, dynamic) => {
    if (node?.type === "Literal" && typeof node.value === "string") {
      report(node, { specifier: node.value, dynamic });
    }
  };
  const declaration = (node) => specifier(node.source, false);
  return {
    Program: (node) => node.body.forEach((statement) => report(statement, { kind: kind(statement) })),
    ImportDeclaration: declaration,
    ExportAllDeclaration: declaration,
    ExportNamedDeclaration: declaration,
    TSExternalModuleReference: (node) => specifier(node.expression, false),
    TSImportType: (node) => specifier(node.argument?.literal ?? node.argument, false),
    ImportExpression: (node) => specifier(node.source, true),
    ReturnStatement(node) {
      if (!context.sourceCode.getAncestors(node).some(({ type }) => FUNCTIONS.has(type))) report(node, {});
    },
  };
}

export default { name: "hutch", rules: { outline: { create } } };
