/** Builds the web console into a folder: the scripts, the style sheet and the page. */

const root = `${import.meta.dirname}/..`;
const out = Deno.args[0];
if (!out) {
  console.error("usage: deno run -A build/main.ts OUTDIR");
  Deno.exit(2);
}

// Runs `deno bundle` as a program, because its API is not stable.
const command = new Deno.Command(Deno.execPath(), {
  args: [
    "bundle",
    "--quiet",
    "--minify",
    "--platform=browser",
    "--code-splitting",
    "--outdir",
    out,
    "main.tsx",
    "api_docs.tsx",
  ],
  cwd: root,
  stderr: "piped",
});
const { success, stderr } = await command.output();
if (!success) throw new Error(`deno bundle: ${new TextDecoder().decode(stderr)}`);

const styles = [...Deno.readDirSync(`${root}/style`)].map((entry) => entry.name).sort();
const css = styles.map((name) => Deno.readTextFileSync(`${root}/style/${name}`)).join("\n");
Deno.writeTextFileSync(`${out}/style.css`, css);
for (const name of ["index.html", "api.html", "icon.svg"]) {
  Deno.copyFileSync(`${root}/${name}`, `${out}/${name}`);
}
