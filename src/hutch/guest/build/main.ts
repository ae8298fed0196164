/** Builds the guest bundle into a folder: the runners, the patched QuickJS and its memory images. */

import wasm from "quickjs-wasi/quickjs.wasm" with { type: "bytes" };
import { PRELUDES } from "../quickjs/host_functions.ts";
import { buildImage } from "./image.ts";
import { patchWasm } from "./patch_wasm.ts";

const root = `${import.meta.dirname}/..`;
const out = Deno.args[0];
if (!out) {
  console.error("usage: deno run -A build/main.ts OUTDIR");
  Deno.exit(2);
}

/** Writes one self-contained file. Runs `deno bundle` as a program, because its API is not stable. */
async function bundle(entry: string, file: string): Promise<void> {
  const command = new Deno.Command(Deno.execPath(), {
    args: ["bundle", "--quiet", "--minify", "--platform=deno", "-o", `${out}/${file}`, entry],
    cwd: root,
    stderr: "piped",
  });
  const { success, stderr } = await command.output();
  if (!success) throw new Error(`deno bundle ${entry}: ${new TextDecoder().decode(stderr)}`);
}

/**
 * Writes a bundle as a classic script, which `entry.ts` passes to V8. A module would start more slowly,
 * because Deno itself parses every module, which takes longer than running the bundle.
 */
async function script(entry: string, file: string, before: string, after: string): Promise<void> {
  await bundle(entry, file);
  const path = `${out}/${file}`;
  Deno.writeTextFileSync(path, `${before}{"use strict";\n${Deno.readTextFileSync(path)}\n${after}`);
}

Deno.mkdirSync(out, { recursive: true });
Deno.writeFileSync(`${out}/quickjs.wasm`, patchWasm(wasm));
await bundle("entry.ts", "entry.js");
await script("quickjs/main.ts", "quickjs.js", "(async () => ", "})()");
await script("deno/main.ts", "deno.js", "(async () => ", "})()");
await script("npm/main.ts", "npm.js", "(async () => ", "})()");
await script("script/main.ts", "script.js", "(async () => ", "})()");
// Each of these scripts evaluates to the value that its source assigns to `__hutch_entry`.
const entry =
  "const entry = globalThis.__hutch_entry;\ndelete globalThis.__hutch_entry;\nreturn entry;\n})()";
await script("quickjs/prelude/main.ts", "plain.js", "(() => ", entry);
await script("quickjs/prelude/web/main.ts", "web.js", "(() => ", entry);
await script("precompile/main.ts", "precompile.js", "(() => ", entry);
await script("typescript/main.ts", "typescript.js", "(() => ", entry);
await script("npm/schema/zod3/main.ts", "zod3.js", "(() => ", entry);
const module = await WebAssembly.compile(Deno.readFileSync(`${out}/quickjs.wasm`));

/** `image.bin` contains the images of both preludes, one after the other. */
const images: Record<string, object> = {};
using file = Deno.openSync(`${out}/image.bin`, { write: true, create: true });
let from = 0;
for (const [name, { functions, entries }] of Object.entries(PRELUDES)) {
  const prelude = Deno.readTextFileSync(`${out}/${name}.js`);
  const { heap, ...image } = buildImage(module, functions, prelude, entries);
  for (let at = 0; at < heap.length;) at += file.writeSync(heap.subarray(at));
  images[name] = { ...image, from, to: from + heap.length };
  from += heap.length;
  Deno.removeSync(`${out}/${name}.js`);
}
Deno.writeTextFileSync(`${out}/image.json`, JSON.stringify(images));
