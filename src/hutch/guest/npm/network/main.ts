/**
 * Sends the package's TCP connections through the host's proxy; other protocols fail with a reason.
 *
 * This is not a security boundary and need not be one: a package that gets around this code still reaches only
 * the proxy, which is the jail's only connection.
 */

import { bodyError, connectionError, fetchError, refusedError, translateCause } from "./errors.ts";
import { blockDatagrams, blockSockets, onFirstSocket, tunnelSockets } from "./sockets.ts";
import { lastFailure, type Target } from "./tunnel.ts";

const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Object;

/** Sends all TCP connections through the proxy at `url`. Must be called before any Node module is loaded. */
export function useProxy(url: string): void {
  const { hostname: host, port } = new URL(url);
  const proxy: Target = { host, port: Number(port) };
  const { connect, createHttpClient } = Deno;
  const makeClient = (options?: object) => createHttpClient({ ...options, proxy: { url } });
  let shared: Deno.HttpClient | undefined;
  const client = () => shared ??= makeClient();

  Deno.createHttpClient = makeClient;
  replaceGlobal(
    "fetch",
    (native) => {
      explainBodyErrors();
      return async function fetch(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
        let response;
        try {
          response = await native(input, withClient(init, client));
        } catch (error) {
          throw await explainFetchError(error, (target) => lastFailure(connect, proxy, target));
        }
        return throwIfFromProxy(response);
      };
    },
  );
  replaceGlobal("WebSocket", (native) =>
    new Proxy(native, {
      construct(target, [address, options], newTarget) {
        const isProtocols = typeof options === "string" || Array.isArray(options);
        const init = withClient(isProtocols ? { protocols: options } : options, client);
        return Reflect.construct(target, [address, init], newTarget);
      },
    }));
  const unproxied = (what: string) =>
    new Error(`Hutch: tools reach the network over HTTP(S), and Node's TCP, only; ${what} cannot be used`);
  blockUnproxied(unproxied);
  onFirstSocket(({ net, dgram }) => {
    tunnelSockets(net, proxy);
    blockDatagrams(dgram, () => unproxied("UDP"));
  });
}

/** Makes all network functions fail with the reason. Must be called before any Node module is loaded. */
export function blockNetwork(reason: string): void {
  const error = () => refusedError(reason || "Network access is off for this tool");
  // deno-lint-ignore require-await
  const fetch = async (): Promise<Response> => {
    throw fetchError(error());
  };
  replaceGlobal("fetch", () => fetch);
  replaceGlobal("WebSocket", (native) => blockClass(native, error));
  blockUnproxied(error);
  onFirstSocket(({ net, dgram }) => {
    blockSockets(net, error);
    blockDatagrams(dgram, error);
  });
}

/** Blocks Deno's functions that cannot use a proxy. */
function blockUnproxied(error: (what: string) => Error): void {
  const { connect } = Deno;
  // deno-lint-ignore require-await
  const refuse = (what: string) => async (): Promise<never> => {
    throw error(what);
  };
  const refuseConnect = refuse("Deno.connect");
  Deno.connect =
    ((options: Deno.ConnectOptions | Deno.UnixConnectOptions) =>
      options.transport === "unix" ? connect(options) : refuseConnect()) as typeof Deno.connect;
  Deno.connectTls = refuse("Deno.connectTls");
  Deno.resolveDns = refuse("Deno.resolveDns") as typeof Deno.resolveDns;
  replaceGlobal("EventSource", (native) => blockClass(native, () => error("EventSource")));
}

/** Replaces a global when it is first read, because Deno loads these globals lazily too. */
function replaceGlobal(name: string, make: (native: any) => unknown): void {
  const descriptor = getOwnPropertyDescriptor(globalThis, name)!;
  const rest = { configurable: true, enumerable: descriptor.enumerable };
  const set = (value: unknown) => defineProperty(globalThis, name, { value, writable: true, ...rest });
  const get = () => {
    const value = make(descriptor.get ? descriptor.get.call(globalThis) : descriptor.value);
    set(value);
    return value;
  };
  defineProperty(globalThis, name, { get, set, ...rest });
}

/** Returns the class with a constructor that throws. */
function blockClass(target: any, error: () => Error): unknown {
  return new Proxy(target, {
    construct() {
      throw error();
    },
  });
}

// --- fetch ---

function withClient(init: any, client: () => Deno.HttpClient): any {
  if (init === undefined || init === null) return { client: client() };
  if (init.client !== undefined) return init;
  const prototype = getPrototypeOf(init);
  if (prototype === Object.prototype || prototype === null) return { ...init, client: client() };
  // `init` may be a Request, for example. The properties of a Request are inherited, so a copy as above would
  // not contain them.
  return new Proxy(init, {
    get: (target, name) => name === "client" ? client() : Reflect.get(target, name, target),
  });
}

/** Throws if the response is an error of the proxy, not one of the server. */
async function throwIfFromProxy(response: Response): Promise<Response> {
  const code = response.headers.get("x-hutch-egress");
  if (code === null) return response;
  const { protocol, hostname: host, port } = new URL(response.url);
  // With http, only the proxy can have set the header, because the proxy removes it from the responses of
  // servers. With https, a server may have set the header, because the proxy cannot change responses inside a
  // tunnel.
  if (protocol !== "http:") return response;
  const reason = (await response.text()).trim();
  throw fetchError(connectionError({ host, port: Number(port || 80) }, code, reason));
}

/** Makes the methods that read a whole body throw Node's error if the connection ends too early. */
function explainBodyErrors(): void {
  const prototype: any = Response.prototype;
  for (const name of ["arrayBuffer", "blob", "bytes", "formData", "json", "text"]) {
    const native = prototype[name];
    const methods = {
      async [name](this: Response) {
        try {
          return await Reflect.apply(native, this, []);
        } catch (error) {
          throw bodyError(error);
        }
      },
    };
    prototype[name] = methods[name];
  }
}

/**
 * Converts an error of Deno's `fetch` to Node's error. Returns errors that are not about the network
 * unchanged.
 */
async function explainFetchError(
  error: any,
  failureOf: (target: Target) => Promise<Error | undefined>,
): Promise<unknown> {
  if (!(error instanceof TypeError)) return error;
  // Deno refuses some requests without sending them, for example to ports of other protocols.
  const refused = /^Fetch failed: (.*)/s.exec(error.message)?.[1];
  if (refused !== undefined) return fetchError(new Error(refused));
  if (error.message !== "fetch failed" || !(error.cause instanceof Error)) return error;
  const address = /for url \((.*?)\): .*unsuccessful tunnel/.exec(error.cause.message)?.[1];
  if (address === undefined) return fetchError(translateCause(error.cause));
  const { hostname: host, port } = new URL(address);
  return fetchError(await failureOf({ host, port: Number(port || 443) }) ?? error.cause);
}
