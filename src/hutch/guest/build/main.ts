/** Builds the guest bundle into the folder given: both runners, the prelude, and the patched QuickJS. */

import wasm from "quickjs-wasi/quickjs.wasm" with { type: "bytes" };
import { patch } from "./patch.ts";

const root = new URL("..", import.meta.url).pathname;
const out = Deno.args[0];
if (!out) {
  console.error("usage: deno run -A build/main.ts OUTDIR");
  Deno.exit(2);
}

/** `deno bundle` writes one self-contained file; it is run as a program because it has no stable API. */
async function bundle(entry: string, file: string): Promise<void> {
  const command = new Deno.Command(Deno.execPath(), {
    args: ["bundle", "--quiet", "--platform=deno", "-o", `${out}/${file}`, entry],
    cwd: root,
    stderr: "piped",
  });
  const { success, stderr } = await command.output();
  if (!success) throw new Error(`deno bundle ${entry}: ${new TextDecoder().decode(stderr)}`);
}

Deno.mkdirSync(out, { recursive: true });
Deno.writeFileSync(`${out}/quickjs.wasm`, patch(wasm));
await bundle("quickjs/main.ts", "quickjs.js");
await bundle("deno/main.ts", "deno.js");
await bundle("quickjs/prelude/main.ts", "prelude.js");
// A script, not a module: its last value is what the runner keeps.
const prelude = Deno.readTextFileSync(`${out}/prelude.js`);
Deno.writeTextFileSync(
  `${out}/prelude.js`,
  `(() => {"use strict";\n${prelude}\nconst entry = globalThis.__hutch_entry;\n` +
    "delete globalThis.__hutch_entry;\nreturn entry;\n})()",
);
