/** Builds the guest bundle into the folder given: the runners, the patched QuickJS, and its memory image. */

import wasm from "quickjs-wasi/quickjs.wasm" with { type: "bytes" };
import { PRELUDES } from "../quickjs/runner.ts";
import { buildImage } from "../quickjs/vm.ts";
import { patch } from "./patch.ts";

const root = `${import.meta.dirname}/..`;
const out = Deno.args[0];
if (!out) {
  console.error("usage: deno run -A build/main.ts OUTDIR");
  Deno.exit(2);
}

/** `deno bundle` writes one self-contained file; it is run as a program because it has no stable API. */
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
 * A bundle as a classic script in a function. Deno parses every module that it loads, which takes longer
 * than to run it; `entry.ts` has V8 alone evaluate these.
 */
async function script(entry: string, file: string, before: string, after: string): Promise<void> {
  await bundle(entry, file);
  const path = `${out}/${file}`;
  Deno.writeTextFileSync(path, `${before}{"use strict";\n${Deno.readTextFileSync(path)}\n${after}`);
}

Deno.mkdirSync(out, { recursive: true });
Deno.writeFileSync(`${out}/quickjs.wasm`, patch(wasm));
await bundle("entry.ts", "entry.js");
await script("quickjs/main.ts", "quickjs.js", "(async () => ", "})()");
await script("deno/main.ts", "deno.js", "(async () => ", "})()");
await script("npm/main.ts", "npm.js", "(async () => ", "})()");
await script("script/main.ts", "script.js", "(async () => ", "})()");
// The value of these is what the runner keeps.
const entry =
  "const entry = globalThis.__hutch_entry;\ndelete globalThis.__hutch_entry;\nreturn entry;\n})()";
await script("quickjs/prelude/main.ts", "plain.js", "(() => ", entry);
await script("quickjs/prelude/web/main.ts", "web.js", "(() => ", entry);
await script("preparing/main.ts", "preparing.js", "(() => ", entry);
await script("typescript/main.ts", "typescript.js", "(() => ", entry);
const module = await WebAssembly.compile(Deno.readFileSync(`${out}/quickjs.wasm`));

/** The images of both preludes, one behind the other in one file. */
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
