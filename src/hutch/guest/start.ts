/** How both runners begin: connect to the host, then give up every permission. */

const KINDS = ["read", "write", "net", "env", "sys", "run", "ffi", "import"] as const;

export async function connect(path: string): Promise<Deno.UnixConn> {
  return await Deno.connect({ transport: "unix", path });
}

export function renounce(): void {
  for (const name of KINDS) Deno.permissions.revokeSync({ name } as Deno.PermissionDescriptor);
}
