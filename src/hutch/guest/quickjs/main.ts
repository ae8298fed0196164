/** Script of the quickjs runner. Its folder also contains `quickjs.wasm` and the memory images. */

import { runAfter } from "../clock.ts";
import { bundleFolder, connect, dropPermissions, openBundleFile } from "../bootstrap.ts";
import { loadTypeScript, provideTypeScript } from "../source/source.ts";
import { Wire } from "../wire.ts";
import { WakeupFile } from "./wakeup.ts";
import { Runner } from "./runner.ts";

/** Idle time after the start before the warm-up. */
const IDLE_MS = 5;
/** Time after which `typescript.js` is loaded unless it was needed before, so that short runs never load it. */
const TYPESCRIPT_MS = 3_000;

const module = await WebAssembly.compile(Deno.readFileSync(`${bundleFolder}/quickjs.wasm`));
// Messages are written to stdout, which guests inside QuickJS cannot reach. Unlike a socket, it has a
// synchronous write.
const socket = await connect();
const wire = new Wire({
  read: (buffer) => socket.read(buffer),
  write: (bytes) => Deno.stdout.write(bytes),
  writeSync: (bytes) => Deno.stdout.writeSync(bytes),
});
const heaps = Deno.readFileSync(`${bundleFolder}/image.bin`);
const images = JSON.parse(Deno.readTextFileSync(`${bundleFolder}/image.json`));
for (const image of Object.values<any>(images)) image.heap = heaps.subarray(image.from, image.to);
provideTypeScript(openBundleFile("typescript.js"));
const runner = new Runner(wire, module, images, new WakeupFile((buffer) => Deno.stdin.readSync(buffer)));
dropPermissions();
wire.send('{"type":"ready"}\n');
let used = false;
runAfter(IDLE_MS, () => {
  if (!used) warmUp();
});
runAfter(TYPESCRIPT_MS, loadTypeScript);
await wire.listen((message) => {
  used = true;
  runner.receive(message);
});
Deno.exit(0);

/** Runs an execution in a temporary VM, so that V8 compiles the code, and loads Node's timers. */
function warmUp(): void {
  setTimeout(() => {}, 0);
  const nullWire = new Wire({
    read: () => Promise.resolve(null),
    write: (bytes) => Promise.resolve(bytes.length),
    writeSync: (bytes) => bytes.length,
  });
  const options = { timeoutMs: 1_000, memoryLimitBytes: 1 << 20, maxLogLines: 0, maxLogChars: 0 };
  const runner = new Runner(nullWire, module, images, new WakeupFile(() => null));
  runner.receive({ type: "execute", id: "", code: "1", options, providers: [] });
}
