/** Node's sockets, on which everything else of Node's network stands: http, https, undici, ws, … */

import { onProcess } from "./node.ts";
import { Answer, request, type Target } from "./tunnel.ts";

type Connect = (this: Socket, ...args: unknown[]) => Socket;
type Listener = (...args: any[]) => void;

/** Of a socket, what is used here. */
export interface Socket {
  _handle: Handle | null;
  _host: string | null;
  connecting: boolean;
  connect: Connect;
  destroyed: boolean;
  destroy(error?: Error): void;
  on(event: string, listener: Listener): this;
  once(event: string, listener: Listener): this;
  removeAllListeners(): this;
  write(text: string): boolean;
  unshift(bytes: Uint8Array): void;
}

interface Handle {
  connect(request: Connecting): number;
  readStop(): number;
  reading: boolean;
}

/** What is told that a handle is connected. */
interface Connecting {
  oncomplete(status: number, handle: Handle, request: Connecting, readable: boolean, writable: boolean): void;
}

export interface Modules {
  net: any;
  dgram: any;
}

const { getOwnPropertySymbols, getPrototypeOf } = Object;

/** Calls `install` when the first socket is made: it begins as an EventEmitter, which `process` is, too. */
export function onFirstSocket(install: (modules: Modules) => void): void {
  onProcess((process) => {
    const Emitter = getPrototypeOf(getPrototypeOf(process)).constructor;
    const { init } = Emitter;
    let installed = false;
    Emitter.init = function (options: unknown) {
      if (!installed && isSocket(this)) {
        installed = true;
        Emitter.init = init;
        install({ net: process.getBuiltinModule("net"), dgram: process.getBuiltinModule("dgram") });
      }
      return init.call(this, options);
    };
  });
}

function isSocket(emitter: object): boolean {
  for (let of = emitter; of; of = getPrototypeOf(of)) if (of.constructor?.name === "Socket") return true;
  return false;
}

/** Has sockets connect through tunnels; for all who use them nothing changes. */
export function tunnel(net: any, proxy: Target): void {
  const { prototype } = net.Socket;
  const connect: Connect = prototype.connect;
  // How Node gives a socket another handle when it tries the next address of a host.
  const adopt = getOwnPropertySymbols(prototype).find((each) => each.description === "kReinitializeHandle")!;
  const direct = { ...proxy, family: 4, autoSelectFamily: false };

  prototype.connect = function (this: Socket & Record<symbol, (handle: Handle) => void>, ...args: unknown[]) {
    const [options, callback] = normalized(net, args);
    if (isLocal(options)) return connect.apply(this, args);
    const target = { host: `${options.host || "localhost"}`, port: Number(options.port) };
    const { keepAlive, keepAliveInitialDelay, noDelay } = options;
    connect.call(this, { keepAlive, keepAliveInitialDelay, noDelay, ...direct }, callback);
    this._host = target.host;
    // It was to connect in the next tick: another one does, and gives it what it gets.
    this._handle!.connect = (connecting) => {
      const inner: Socket = new net.Socket();
      this.once("close", () => inner.destroy());
      open(inner, target, (error, rest) => {
        if (this.destroyed) return inner.destroy();
        if (error) return this.destroy(error);
        this[adopt](taken(inner));
        connecting.oncomplete(0, this._handle!, connecting, true, true);
        if (rest.length) this.unshift(rest);
      });
      connect.call(inner, direct);
      return 0;
    };
    return this;
  };
}

/** Has every socket fail. */
export function closeSockets(net: any, error: () => Error): void {
  const connect: Connect = net.Socket.prototype.connect;
  net.Socket.prototype.connect = function (this: Socket, ...args: unknown[]) {
    if (isLocal(normalized(net, args)[0])) return connect.apply(this, args);
    // Else what is written meanwhile fails first, with another reason.
    this.connecting = true;
    // Whoever made it has yet to listen for errors.
    setImmediate(() => this.destroy(error()));
    return this;
  };
}

export function closeDatagrams(dgram: any, error: () => Error): void {
  for (const name of ["send", "connect"]) {
    dgram.Socket.prototype[name] = function (...args: unknown[]) {
      const callback = args.at(-1);
      setImmediate(() => typeof callback === "function" ? callback(error()) : this.emit("error", error()));
    };
  }
}

/** Options and callback, however they were given; Node's own modules give them so. */
function normalized(net: any, args: unknown[]): [options: any, callback: Listener | null] {
  return (Array.isArray(args[0]) ? args[0] : net._normalizeArgs(args)) as [any, Listener | null];
}

/** A path of the file system, or nothing that could be reached: Node knows what to say. */
function isLocal({ port, path }: any): boolean {
  return !(Number(port) >= 0 && Number(port) <= 65535) || (path !== undefined && path !== null);
}

/** Asks the proxy for a tunnel, through a socket that is about to be connected to it. */
function open(
  inner: Socket,
  target: Target,
  done: (error: Error | undefined, rest: Uint8Array) => void,
): void {
  const answer = new Answer();
  const fail = (error?: Error) => {
    inner.removeAllListeners().on("error", () => {});
    inner.destroy();
    done(error ?? refusal(target, answer), answer.rest);
  };
  inner.once("connect", () => inner.write(request(target)));
  inner.once("error", fail);
  inner.once("end", () => fail());
  inner.on("data", (bytes) => {
    answer.add(bytes);
    if (answer.status !== 200) return;
    inner.removeAllListeners();
    done(undefined, answer.rest);
  });
}

/** What Node calls what the proxy answers. */
const CODES: Record<number, string> = { 403: "EACCES", 502: "EHOSTUNREACH", 504: "ETIMEDOUT" };

function refusal({ host, port }: Target, answer: Answer): Error {
  const code = CODES[answer.status] ?? "ECONNRESET";
  const error = new Error(`connect ${code} ${host}:${port}: ${answer.reason}`);
  return Object.assign(error, { code, syscall: "connect", address: host, port });
}

/** A connected socket's handle, which is nobody's from then on. */
function taken(socket: Socket): Handle {
  const handle = socket._handle!;
  handle.readStop();
  handle.reading = false;
  socket._handle = null;
  socket.destroy();
  return handle;
}
