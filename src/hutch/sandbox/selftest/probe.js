// Tries actions that a jail must forbid, and reports the results as one line of JSON, which probe.py checks.
const { paths, tcp, udp, abstract, pid, tmpBytes } = JSON.parse(Deno.args[0]);

function attempt(action) {
  try {
    return { done: true, value: action() };
  } catch (error) {
    return { done: false, value: `${error.name}: ${error.message}` };
  }
}

async function attemptAsync(action) {
  try {
    return { done: true, value: await action() };
  } catch (error) {
    return { done: false, value: `${error.name}: ${error.message}` };
  }
}

function walk(directory, found) {
  for (const entry of Deno.readDirSync(directory)) {
    if (found.length >= 200) return found;
    const path = `${directory === "/" ? "" : directory}/${entry.name}`;
    if (entry.isDirectory) attempt(() => walk(path, found));
    else found.push(path);
  }
  return found;
}

function write(path, bytes) {
  Deno.writeFileSync(path, new Uint8Array(bytes).fill(1));
  Deno.removeSync(path);
}

function writable() {
  const listed = attempt(() => [...Deno.readDirSync("/")].filter((e) => e.isDirectory).map((e) => `/${e.name}/`));
  const directories = ["/", ...(listed.done ? listed.value : ["/tmp/"])];
  return directories.filter((d) => attempt(() => write(`${d}hutch-selftest`, 1)).done);
}

// Calls the C library, like native code that has escaped V8 and Deno's permissions.
function native() {
  const i = "i64", result = "i64";
  const c = Deno.dlopen("libc.so.6", {
    syscall: { parameters: [i, i, i, i, i, i, i], result },
    prctl: { parameters: ["i32", i, i, i, i], result: "i32" },
    capget: { parameters: ["buffer", "buffer"], result: "i32" },
    kill: { parameters: ["i32", "i32"], result: "i32" },
    mount: { parameters: ["buffer", "buffer", "buffer", i, "buffer"], result: "i32" },
    unshare: { parameters: ["i32"], result: "i32" },
    chroot: { parameters: ["buffer"], result: "i32" },
    ptrace: { parameters: [i, i, i, i], result },
    socket: { parameters: ["i32", "i32", "i32"], result: "i32" },
    connect: { parameters: ["i32", "buffer", "u32"], result: "i32" },
    send: { parameters: ["i32", "buffer", i, "i32"], result },
    ioctl: { parameters: ["i32", i, "buffer"], result: "i32" },
  }).symbols;
  const text = (s) => new TextEncoder().encode(`${s}\0`);
  const address = (head, tail) => Uint8Array.from([...head, ...tail]);
  const connects = (family, type, where) => {
    const socket = c.socket(family, type, 0);
    return c.connect(socket, where, where.length) === 0 ? socket : 0;
  };
  const inet = (host, port) => address([2, 0, port >> 8, port & 255], [...host, 0, 0, 0, 0, 0, 0, 0, 0]);

  const [keyctl, tgkill] = Deno.build.arch === "x86_64" ? [250, 234] : [219, 131];
  // If the host itself runs in a container, its pid may equal that of the jail's init or of one of our threads.
  const isInside = (pid) => pid === 1 || Number(c.syscall(tgkill, Deno.pid, pid, 0, 0, 0, 0)) === 0;

  const capabilities = new Uint32Array(6);
  c.capget(Uint32Array.of(0x20080522, 0), capabilities);
  return {
    capabilities: [...capabilities],
    noNewPrivileges: c.prctl(39, 0, 0, 0, 0),
    seccomp: c.prctl(21, 0, 0, 0, 0),
    succeeded: Object.entries({
      "mount": () => c.mount(text("none"), text("/tmp"), text("tmpfs"), 0, text("")),
      "unshare user": () => c.unshare(0x10000000),
      "unshare mount": () => c.unshare(0x00020000),
      "unshare network": () => c.unshare(0x40000000),
      "chroot": () => c.chroot(text("/tmp")),
      "signal to the host": () => isInside(pid) ? -1 : c.kill(pid, 0),
      "key of the kernel": () => c.syscall(keyctl, 0, -3, 0, 0, 0, 0),
      "ptrace": () => Number(c.ptrace(0, 0, 0, 0)),
      "netlink socket": () => c.socket(16, 3, 0),
    }).filter(([_, call]) => Number(call()) >= 0).map(([name]) => name),
    abstract: connects(1, 1, address([1, 0, 0], new TextEncoder().encode(abstract))) > 0,
    udp: Number(c.send(connects(2, 2, inet([127, 0, 0, 1], udp)), new Uint8Array(1), 1, 0)) === 1,
    // Connecting a datagram socket only looks up a route and sends nothing; 192.0.2.1 is reserved for documentation.
    route: connects(2, 2, inet([192, 0, 2, 1], 9)) > 0,
    interfaces: interfaces(c),
  };
}

function interfaces(c) {
  const names = [];
  const socket = c.socket(2, 2, 0);
  for (let index = 1; index <= 64; index++) {
    const request = new Uint8Array(40);
    new DataView(request.buffer).setInt32(16, index, true);
    if (c.ioctl(socket, 0x8910, request) === 0) names.push(new TextDecoder().decode(request.subarray(0, 16)).split("\0")[0]);
  }
  return names;
}

console.log(JSON.stringify({
  pid: Deno.pid,
  host: attempt(() => Deno.hostname()),
  environment: attempt(() => Deno.env.toObject()),
  seen: paths.filter((path) => attempt(() => Deno.lstatSync(path)).done),
  read: paths.filter((path) => attempt(() => Deno.readFileSync(path)).done || attempt(() => [...Deno.readDirSync(path)]).done),
  files: attempt(() => walk("/", [])),
  writable: writable(),
  fill: attempt(() => write("/tmp/hutch-selftest", tmpBytes + 65536)),
  run: attempt(() => new Deno.Command(Deno.execPath(), { args: ["--version"] }).outputSync().code),
  tcp: await attemptAsync(async () => (await Deno.connect({ hostname: "127.0.0.1", port: tcp })).close()),
  native: attempt(native),
}));
