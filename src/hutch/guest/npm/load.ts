/** The package: imported once, from its tree. */

import { messageOf, nameOf, ToolFault } from "./fault.ts";
import type { Converter } from "./schema.ts";

/** What the host tells a runner before anything of a package is there. */
export interface Told {
  /** The folder with the package's files and all that it depends on, as the guest sees it. */
  tree: string;
  package: string;
  env: Record<string, string>;
  /** Where the way out is, and why there is none. */
  proxy?: string | null;
  network?: string;
}

export type Exports = Record<string, unknown>;

const { realPathSync, statSync } = Deno;

/** Every module of a package, through the one of its tree that resolves its name. Throws ToolFault. */
export async function load(told: Told): Promise<Exports> {
  try {
    const { default: start } = await import(url(`${told.tree}/load.mjs`));
    return await start();
  } catch (error) {
    throw importFault(error, told);
  }
}

export function importFault(error: unknown, { tree, package: name }: Told): ToolFault {
  const { code, stack } = Object(error) as { code?: unknown; stack?: unknown };
  let text = messageOf(error);
  // Deno has one code for all that keeps it from a module, and says in the message what it really is.
  if (typeof code === "string" && !/\bERR_|^SyntaxError/.test(text)) text = `${code}: ${text}`;
  // V8 has the place of a syntax error on the stack alone.
  const place = error instanceof SyntaxError && /(?:at |\()(file:\S+:\d+:\d+)/.exec(`${stack}`)?.[1];
  if (place && !text.includes(place)) text += ` at ${place}`;
  text = text.replaceAll(url(`${tree}/`), "").replaceAll(`${tree}/`, "");
  text = text.replaceAll(" imported from 'load.mjs'", "").replace(/\n {4}at load\.mjs:\d+:\d+/g, "");
  return new ToolFault("import_failed", `${name} cannot be imported: ${text.trimEnd()}`, nameOf(error));
}

/** The converter of the Zod 4 that a package finds when it imports "zod". */
export async function zodConverter({ tree, package: name }: Told): Promise<Converter> {
  let folder = realPathSync(`${tree}/node_modules/${name}`);
  for (const root = realPathSync(tree); folder.startsWith(root);) {
    // Zod 3.25 and newer have Zod 4 inside.
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
