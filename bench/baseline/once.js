// The code of the `deno run` baseline.
console.log(1 + 1);
