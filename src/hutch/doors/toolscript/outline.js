// A plugin for `deno lint` that objects to nothing: it reports what an outline is made of (see bydeno.py).

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
  const tell = (node, told) => context.report({ node, message: JSON.stringify(told) });
  const specifier = (node, dynamic) => {
    if (node?.type === "Literal" && typeof node.value === "string") {
      tell(node, { specifier: node.value, dynamic });
    }
  };
  const declaration = (node) => specifier(node.source, false);
  return {
    Program: (node) => node.body.forEach((statement) => tell(statement, { kind: kind(statement) })),
    ImportDeclaration: declaration,
    ExportAllDeclaration: declaration,
    ExportNamedDeclaration: declaration,
    TSExternalModuleReference: (node) => specifier(node.expression, false),
    TSImportType: (node) => specifier(node.argument?.literal ?? node.argument, false),
    ImportExpression: (node) => specifier(node.source, true),
    ReturnStatement(node) {
      if (!context.sourceCode.getAncestors(node).some(({ type }) => FUNCTIONS.has(type))) tell(node, {});
    },
  };
}

export default { name: "hutch", rules: { outline: { create } } };
