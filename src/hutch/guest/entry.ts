/** Entry point: `entry.js FOLDER/RUNNER.js SOCKET` lets V8 evaluate the runner's script. */

const script = Deno.args[0];
(0, eval)(
  `${Deno.readTextFileSync(script)}\n//# sourceURL=hutch:${script.slice(script.lastIndexOf("/") + 1)}`,
);
