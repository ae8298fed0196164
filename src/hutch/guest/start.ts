/** How runners begin: connect to the host, then give up every permission that they do not need. */

const KINDS = ["read", "write", "net", "env", "sys", "run", "ffi", "import"] as const;

/** Where the bundle is. */
export const folder = new URL(".", Deno.mainModule).pathname;

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
