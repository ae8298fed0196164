/** Entry of the quickjs runner: `quickjs.js SOCKET`, with `quickjs.wasm` and `prelude.js` beside it. */

import { connect, renounce } from "../start.ts";
import { Wire } from "../wire.ts";
import { Runner } from "./runner.ts";

const here = new URL(".", import.meta.url);
const module = await WebAssembly.compile(Deno.readFileSync(new URL("quickjs.wasm", here)));
const prelude = Deno.readTextFileSync(new URL("prelude.js", here));
const wire = new Wire(await connect(Deno.args[0]));
const runner = new Runner(wire, module, prelude);
renounce();
wire.send('{"type":"ready"}\n');
await wire.listen((message) => runner.receive(message));
Deno.exit(0);
