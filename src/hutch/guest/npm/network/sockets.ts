/** Hooks for Node's sockets, which http, https, undici, ws and others use. */

import { connectionError } from "./errors.ts";
import { onProcess } from "./node.ts";
import { connectRequest, ProxyResponse, type Target } from "./tunnel.ts";

type Connect = (this: Socket, ...args: unknown[]) => Socket;
type Listener = (...args: any[]) => void;

/** The parts of a socket that are used here. */
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
  connect(request: ConnectRequest): number;
  readStop(): number;
  reading: boolean;
}

/** Node's request object. The handle calls `oncomplete` when it is connected or has failed. */
interface ConnectRequest {
  oncomplete(
    status: number,
    handle: Handle,
    request: ConnectRequest,
    readable: boolean,
    writable: boolean,
  ): void;
}

export interface Modules {
  net: any;
  dgram: any;
}

const { getOwnPropertySymbols, getPrototypeOf } = Object;

/** Calls `install` when the first socket is created, by hooking EventEmitter, the base class of sockets. */
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
  for (let object = emitter; object; object = getPrototypeOf(object)) {
    if (object.constructor?.name === "Socket") return true;
  }
  return false;
}

/** Makes sockets connect through tunnels of the proxy, transparently for their users. */
export function tunnelSockets(net: any, proxy: Target): void {
  const { prototype } = net.Socket;
  const connect: Connect = prototype.connect;
  // Node's method that replaces the handle of a socket to try the next address of a host.
  const replaceHandle = getOwnPropertySymbols(prototype).find(({ description }) =>
    description === "kReinitializeHandle"
  )!;
  const direct = { ...proxy, family: 4, autoSelectFamily: false };

  prototype.connect = function (this: Socket & Record<symbol, (handle: Handle) => void>, ...args: unknown[]) {
    const [options, callback] = normalized(net, args);
    if (isLocal(options)) return connect.apply(this, args);
    const target = { host: `${options.host || "localhost"}`, port: Number(options.port) };
    const { keepAlive, keepAliveInitialDelay, noDelay } = options;
    connect.call(this, { keepAlive, keepAliveInitialDelay, noDelay, ...direct }, callback);
    this._host = target.host;
    // Node connects the handle in the next tick. Connect an inner socket through the tunnel instead, and then
    // take over its handle.
    this._handle!.connect = (request) => {
      const inner: Socket = new net.Socket();
      this.once("close", () => inner.destroy());
      openTunnel(inner, target, (error, rest) => {
        if (this.destroyed) return inner.destroy();
        if (error) return this.destroy(error);
        this[replaceHandle](detachHandle(inner));
        request.oncomplete(0, this._handle!, request, true, true);
        if (rest.length) this.unshift(rest);
      });
      connect.call(inner, direct);
      return 0;
    };
    return this;
  };
}

/** Makes every new connection fail with `error`. */
export function blockSockets(net: any, error: () => Error): void {
  const connect: Connect = net.Socket.prototype.connect;
  net.Socket.prototype.connect = function (this: Socket, ...args: unknown[]) {
    if (isLocal(normalized(net, args)[0])) return connect.apply(this, args);
    // Mark the socket as connecting. Otherwise a write would fail first, with another error.
    this.connecting = true;
    // Fail later, because the caller has not yet added its error listener.
    setImmediate(() => this.destroy(error()));
    return this;
  };
}

export function blockDatagrams(dgram: any, error: () => Error): void {
  for (const name of ["send", "connect"]) {
    dgram.Socket.prototype[name] = function (...args: unknown[]) {
      const callback = args.at(-1);
      setImmediate(() => typeof callback === "function" ? callback(error()) : this.emit("error", error()));
    };
  }
}

/** Returns the options and the callback of a `connect` call. Node's own modules pass both in an array. */
function normalized(net: any, args: unknown[]): [options: any, callback: Listener | null] {
  return (Array.isArray(args[0]) ? args[0] : net._normalizeArgs(args)) as [any, Listener | null];
}

/** Returns true if Node itself handles the target: a Unix socket, or an invalid port, which Node reports. */
function isLocal({ port, path }: any): boolean {
  return !(Number(port) >= 0 && Number(port) <= 65535) || (path !== undefined && path !== null);
}

/** Requests a tunnel through a socket that is going to be connected to the proxy. */
function openTunnel(
  inner: Socket,
  target: Target,
  done: (error: Error | undefined, rest: Uint8Array) => void,
): void {
  const response = new ProxyResponse();
  const fail = (error?: Error) => {
    inner.removeAllListeners().on("error", () => {});
    inner.destroy();
    done(error ?? connectionError(target, response.code, response.reason), response.rest);
  };
  inner.once("connect", () => inner.write(connectRequest(target)));
  inner.once("error", fail);
  inner.once("end", () => fail());
  inner.on("data", (bytes) => {
    response.add(bytes);
    if (response.status !== 200) return;
    inner.removeAllListeners();
    done(undefined, response.rest);
  });
}

/** Takes the handle from a connected socket. */
function detachHandle(socket: Socket): Handle {
  const handle = socket._handle!;
  handle.readStop();
  handle.reading = false;
  socket._handle = null;
  socket.destroy();
  return handle;
}
