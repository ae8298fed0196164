// What `deno run` is given: the same code as everything else here.
console.log(1 + 1);
