/** Start of a runner: connects to the host and drops permissions. */

const KINDS = ["read", "write", "net", "env", "sys", "run", "ffi", "import"] as const;

/** Folder of the bundle, taken from the arguments: parsing `import.meta.url` would take 0.2 ms. */
export const bundleFolder = Deno.args[0].slice(0, Deno.args[0].lastIndexOf("/"));

/** Opens a file of the bundle now and reads it later, when the permission to open files is gone. */
export function openBundleFile(name: string): () => string {
  const file = Deno.openSync(`${bundleFolder}/${name}`);
  return () => {
    // Seek to the end to get the size, because `stat` needs a permission even for an open file.
    const bytes = new Uint8Array(file.seekSync(0, Deno.SeekMode.End));
    file.seekSync(0, Deno.SeekMode.Start);
    for (let at = 0; at < bytes.length;) {
      const count = file.readSync(bytes.subarray(at));
      if (count === null) throw new Error(`${name} was truncated while it was read`);
      at += count;
    }
    return new TextDecoder().decode(bytes);
  };
}

export async function connect(): Promise<Deno.UnixConn> {
  return await Deno.connect({ transport: "unix", path: Deno.args[1] });
}

export function dropSocketPermissions(): void {
  const path = Deno.args[1];
  for (const name of ["read", "write"] as const) Deno.permissions.revokeSync({ name, path });
}

export function dropPermissions(): void {
  for (const name of KINDS) Deno.permissions.revokeSync({ name } as Deno.PermissionDescriptor);
}

/** Matches Deno's advice in permission errors to pass a flag. A guest cannot follow this advice. */
const FLAG_ADVICE = /, run again with the --allow-[a-z-]+ flag$/;

/** Replaces Deno's advice in all permission errors by `instead`, including errors that a guest catches. */
export function replaceFlagAdvice(instead: string): void {
  const { NotCapable } = Deno.errors;
  const { apply } = Reflect, { replace } = String.prototype;
  class NotCapableBase extends Error {
    constructor(message?: string, options?: ErrorOptions) {
      super(typeof message === "string" ? apply(replace, message, [FLAG_ADVICE, instead]) : message, options);
    }
  }
  // Deno creates permission errors with the class NotCapable. Its constructor calls `super`, which is always
  // the current prototype of NotCapable. So replacing this prototype changes all permission errors.
  Object.setPrototypeOf(NotCapable, NotCapableBase);
}
