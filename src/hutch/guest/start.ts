/** How runners begin: connect to the host, then give up every permission that they do not need. */

const KINDS = ["read", "write", "net", "env", "sys", "run", "ffi", "import"] as const;

/** Where the bundle is. Not from a URL: to parse one takes 0.2 ms of every start. */
export const folder = Deno.args[0].slice(0, Deno.args[0].lastIndexOf("/"));

/** A text of the bundle that is read when it is wanted: by then nothing can be opened any more. */
export function part(name: string): () => string {
  const file = Deno.openSync(`${folder}/${name}`);
  return () => {
    // Even to look at what is open, `stat` needs a permission.
    const bytes = new Uint8Array(file.seekSync(0, Deno.SeekMode.End));
    file.seekSync(0, Deno.SeekMode.Start);
    for (let at = 0; at < bytes.length;) {
      const count = file.readSync(bytes.subarray(at));
      if (count === null) throw new Error(`${name} is shorter than it was`);
      at += count;
    }
    return new TextDecoder().decode(bytes);
  };
}

export async function connect(): Promise<Deno.UnixConn> {
  return await Deno.connect({ transport: "unix", path: Deno.args[1] });
}

/** The rest of a runner's life needs the connection alone. */
export function forgetSocket(): void {
  const path = Deno.args[1];
  for (const name of ["read", "write"] as const) Deno.permissions.revokeSync({ name, path });
}

export function renounce(): void {
  for (const name of KINDS) Deno.permissions.revokeSync({ name } as Deno.PermissionDescriptor);
}
