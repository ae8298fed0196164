/** Imports the package from its folder. */

import { locationOf, messageOf, nameOf, ToolError, UNPUBLISHED } from "./errors.ts";
import type { Zod4Converter } from "./schema/main.ts";

/** Configuration that the host sends on stdin at the start. */
export interface RunnerConfig {
  /** Folder of the package and its dependencies, as the guest sees it. */
  tree: string;
  package: string;
  env: Record<string, string>;
  /** URL of the egress proxy. */
  proxy?: string | null;
  /** Reason why there is no network, if there is no proxy. */
  network?: string;
}

export type Exports = Record<string, unknown>;

const { realPathSync, statSync } = Deno;

/** Imports the package through `load.mjs`, which resolves its name in the folder. Throws ToolError. */
export async function load(config: RunnerConfig): Promise<Exports> {
  try {
    const { default: importPackage } = await import(url(`${config.tree}/load.mjs`));
    return await importPackage();
  } catch (error) {
    throw importError(error, config);
  }
}

export function importError(error: unknown, { tree, package: name }: RunnerConfig): ToolError {
  const { code, stack } = Object(error) as { code?: unknown; stack?: unknown };
  let text = messageOf(error);
  // Deno uses one code for all errors of loading a module; the message names the actual error.
  if (typeof code === "string" && !/\bERR_|^SyntaxError/.test(text)) text = `${code}: ${text}`;
  // Read the position of a syntax error from the stack, because V8 reports it only there.
  const position = error instanceof SyntaxError && /(?:at |\()(file:\S+:\d+:\d+)/.exec(`${stack}`)?.[1];
  if (position && !text.includes(position)) text += ` at ${position}`;
  text = withoutFolders(text, tree, name);
  text = text.replaceAll(" imported from 'load.mjs'", "").replace(/\n {4}at load\.mjs:\d+:\d+/g, "");
  text = withAdvice(text.trimEnd());
  const message = `${name} cannot be imported: ${text}`;
  return new ToolError("import_failed", message, nameOf(error), locationOf(error, name));
}

/** Shortens the paths in a message. Paths of the package's own files become relative. */
function withoutFolders(text: string, tree: string, name: string): string {
  for (const start of [url(`${tree}/`), `${tree}/`]) text = text.replaceAll(start, "");
  const installed = `node_modules/\\.deno/[^/\\s]+/node_modules/${RegExp.escape(name)}/`;
  const own = `(?:${installed}|node_modules/${RegExp.escape(name)}/|${UNPUBLISHED.slice(1)})`;
  return text.replace(new RegExp(`(^|[\\s'"(])${own}`, "g"), "$1");
}

/**
 * Deno's messages about the import of a package that is not installed. Deno has other messages for imports in
 * TypeScript files of packages that were not published.
 */
const NOT_INSTALLED = [
  /Could not find package '([^']+)' from referrer '([^']*)'\./,
  /Import "([^"]+)" not a dependency(?:\n *hint: .*)?\n *at (\S+)/,
  /Could not resolve "([^"]+)", but found it in a package\.json\..*\n *at (\S+)/,
];

/** Replaces Deno's message about a missing package by advice for the author of the tool. */
function withAdvice(text: string): string {
  for (const pattern of NOT_INSTALLED) {
    text = text.replace(pattern, (_, imported: string, file: string) => {
      const [name] = /^(?:@[^/]+\/)?[^/]+/.exec(imported) ?? [imported];
      return `${file} imports ${name}, which is not installed. ` +
        `Add ${name} to \`dependencies\` in package.json; \`devDependencies\` are not installed.`;
    });
  }
  if (/^(?:require|module|exports|__dirname|__filename) is not defined/.test(text)) {
    text += '. package.json says "type": "module": use import and export, or name the file .cjs.';
  }
  return text;
}

/** Loads `toJSONSchema` of the Zod 4 that the package gets when it imports "zod". */
export async function loadZod4({ tree, package: name }: RunnerConfig): Promise<Zod4Converter | undefined> {
  let folder = realPathSync(`${tree}/node_modules/${name}`);
  for (const root = realPathSync(tree); folder.startsWith(root);) {
    // Zod 3.25 and newer versions of Zod 3 contain Zod 4 in this file.
    const core = `${folder}/node_modules/zod/v4/core/index.js`;
    if (exists(core)) return (await import(url(realPathSync(core)))).toJSONSchema;
    folder = folder.slice(0, folder.lastIndexOf("/"));
  }
}

function url(path: string): string {
  return `file://${encodeURI(path).replace(/[?#]/g, encodeURIComponent)}`;
}

function exists(path: string): boolean {
  try {
    return statSync(path).isFile;
  } catch {
    return false;
  }
}
