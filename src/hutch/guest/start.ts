/** How both runners begin: connect to the host, then give up every permission. */

const KINDS = ["read", "write", "net", "env", "sys", "run", "ffi", "import"] as const;

/** Where the bundle is. */
export const folder = new URL(".", Deno.mainModule).pathname;

export async function connect(): Promise<Deno.UnixConn> {
  return await Deno.connect({ transport: "unix", path: Deno.args[1] });
}

export function renounce(): void {
  for (const name of KINDS) Deno.permissions.revokeSync({ name } as Deno.PermissionDescriptor);
}
