// Echoes every line after parsing it as JSON: the minimum cost of a round trip.
const socket = await Deno.connect({ transport: "unix", path: Deno.args[0] });
const decoder = new TextDecoder(), encoder = new TextEncoder();
const buffer = new Uint8Array(65536);
for (let count; (count = await socket.read(buffer)) !== null;) {
  const line = JSON.parse(decoder.decode(buffer.subarray(0, count)));
  Deno.stdout.writeSync(encoder.encode(JSON.stringify(line) + "\n"));
}
