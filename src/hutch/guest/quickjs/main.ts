/** The quickjs runner's script: `quickjs.wasm` and the image are beside it. */

import { after } from "../clock.ts";
import { connect, folder, part, renounce } from "../start.ts";
import { loadTypeScript, provideTypeScript } from "../source.ts";
import { Wire } from "../wire.ts";
import { Bell } from "./bell.ts";
import { Runner } from "./runner.ts";

/** For how long nobody must want this process before it does what is slow the first time. */
const IDLE_MS = 5;
/** When TypeScript's part is loaded, if it was not needed before: not for who is there for a moment. */
const TYPESCRIPT_MS = 3_000;

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
const runner = new Runner(wire, module, images, new Bell((buffer) => Deno.stdin.readSync(buffer)));
renounce();
wire.send('{"type":"ready"}\n');
let used = false;
after(IDLE_MS, () => {
  if (!used) rehearse();
});
after(TYPESCRIPT_MS, loadTypeScript);
await wire.listen((message) => {
  used = true;
  runner.receive(message);
});
Deno.exit(0);

/** One execution in a VM that is thrown away: what V8 compiles for it, the others have. And Node's timers. */
function rehearse(): void {
  setTimeout(() => {}, 0);
  const nowhere = new Wire({
    read: () => Promise.resolve(null),
    write: (bytes) => Promise.resolve(bytes.length),
    writeSync: (bytes) => bytes.length,
  });
  const options = { timeoutMs: 1_000, memoryLimitBytes: 1 << 20, maxLogLines: 0, maxLogChars: 0 };
  const runner = new Runner(nowhere, module, images, new Bell(() => null));
  runner.receive({ type: "execute", id: "", code: "1", options, providers: [] });
}
