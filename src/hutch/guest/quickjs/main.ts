/** The quickjs runner's script: `quickjs.wasm` and the image are beside it. */

import { connect, folder, renounce } from "../start.ts";
import { loadTypeScript } from "../source.ts";
import { Wire } from "../wire.ts";
import { Runner } from "./runner.ts";

const module = await WebAssembly.compile(Deno.readFileSync(`${folder}/quickjs.wasm`));
const wire = new Wire(await connect());
const image = JSON.parse(Deno.readTextFileSync(`${folder}/image.json`));
image.heap = Deno.readFileSync(`${folder}/image.bin`);
const runner = new Runner(wire, module, image);
renounce();
wire.send('{"type":"ready"}\n');
setTimeout(loadTypeScript, 500);
await wire.listen((message) => runner.receive(message));
Deno.exit(0);
