/** What Deno is told to run: `entry.js RUNNER SOCKET`. Has V8 evaluate the runner's script beside it. */

const script = `${import.meta.dirname}/${Deno.args[0]}`;
(0, eval)(`${Deno.readTextFileSync(script)}\n//# sourceURL=${Deno.args[0]}`);
