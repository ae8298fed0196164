/** The quickjs runner's script: `quickjs.wasm` and the image are beside it. */

import { connect, folder, part, renounce } from "../start.ts";
import { loadTypeScript, provideTypeScript } from "../source.ts";
import { Wire } from "../wire.ts";
import { Runner } from "./runner.ts";

const module = await WebAssembly.compile(Deno.readFileSync(`${folder}/quickjs.wasm`));
// Guests are inside QuickJS and have no stdout; unlike a socket it can be written to without waiting.
const socket = await connect();
const wire = new Wire({
  read: (buffer) => socket.read(buffer),
  write: (bytes) => Deno.stdout.write(bytes),
  writeSync: (bytes) => Deno.stdout.writeSync(bytes),
});
const heaps = Deno.readFileSync(`${folder}/image.bin`);
const images = JSON.parse(Deno.readTextFileSync(`${folder}/image.json`));
for (const image of Object.values<any>(images)) image.heap = heaps.subarray(image.from, image.to);
provideTypeScript(part("typescript.js"));
const runner = new Runner(wire, module, images);
renounce();
wire.send('{"type":"ready"}\n');
setTimeout(loadTypeScript, 500);
await wire.listen((message) => runner.receive(message));
Deno.exit(0);
