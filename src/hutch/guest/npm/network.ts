/**
 * The network as a package sees it: what speaks TCP goes through the host's proxy, the rest says why it cannot.
 *
 * None of this is a boundary: the jail has no other way out than the proxy, whatever a package does here.
 */

import { closeDatagrams, closeSockets, onFirstSocket, tunnel } from "./sockets.ts";
import { ask, type Target } from "./tunnel.ts";

const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Object;

/** Has everything go through the proxy at `url`. To be called before anything of Node is loaded. */
export function useProxy(url: string): void {
  const { hostname: host, port } = new URL(url);
  const proxy: Target = { host, port: Number(port) };
  const { connect, createHttpClient } = Deno;
  const makeClient = (options?: object) => createHttpClient({ ...options, proxy: { url } });
  let shared: Deno.HttpClient | undefined;
  const client = () => shared ??= makeClient();

  Deno.createHttpClient = makeClient;
  replace(
    "fetch",
    (native) =>
      async function fetch(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
        let response;
        try {
          response = await native(input, withClient(init, client));
        } catch (error) {
          throw await explained(error, (target) => ask(connect, proxy, target));
        }
        return told(response);
      },
  );
  replace("WebSocket", (native) =>
    new Proxy(native, {
      construct(target, [address, options], newTarget) {
        const listed = typeof options === "string" || Array.isArray(options);
        const given = withClient(listed ? { protocols: options } : options, client);
        return Reflect.construct(target, [address, given], newTarget);
      },
    }));
  const unproxied = (what: string) =>
    new Error(`Hutch: tools reach the network over HTTP(S), and Node's TCP, only; ${what} cannot be used`);
  closeOthers(unproxied);
  onFirstSocket(({ net, dgram }) => {
    tunnel(net, proxy);
    closeDatagrams(dgram, () => unproxied("UDP"));
  });
}

/** Has everything fail at once, and say why. To be called before anything of Node is loaded. */
export function noNetwork(reason: string): void {
  const off = () => new TypeError(reason || "Network access is off for this tool");
  // deno-lint-ignore require-await
  const fetch = async (): Promise<Response> => {
    throw off();
  };
  replace("fetch", () => fetch);
  replace("WebSocket", (native) => closed(native, off));
  closeOthers(off);
  onFirstSocket(({ net, dgram }) => {
    closeSockets(net, off);
    closeDatagrams(dgram, off);
  });
}

/** What of Deno's own a proxy can do nothing for. */
function closeOthers(error: (what: string) => Error): void {
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
  replace("EventSource", (native) => closed(native, () => error("EventSource")));
}

/** Replaces a global when it is looked at for the first time: Deno itself loads these no sooner. */
function replace(name: string, make: (native: any) => unknown): void {
  const known = getOwnPropertyDescriptor(globalThis, name)!;
  const rest = { configurable: true, enumerable: known.enumerable };
  const set = (value: unknown) => defineProperty(globalThis, name, { value, writable: true, ...rest });
  const get = () => {
    const value = make(known.get ? known.get.call(globalThis) : known.value);
    set(value);
    return value;
  };
  defineProperty(globalThis, name, { get, set, ...rest });
}

/** A class that cannot be made. */
function closed(kind: any, error: () => Error): unknown {
  return new Proxy(kind, {
    construct() {
      throw error();
    },
  });
}

// --- fetch ---

function withClient(init: any, client: () => Deno.HttpClient): any {
  if (init === undefined || init === null) return { client: client() };
  if (init.client !== undefined) return init;
  const kind = getPrototypeOf(init);
  if (kind === Object.prototype || kind === null) return { ...init, client: client() };
  // A Request, say, whose parts cannot be taken apart.
  return new Proxy(init, { get: (of, name) => name === "client" ? client() : Reflect.get(of, name, of) });
}

/** An answer of the proxy's own is none of the server's. */
async function told(response: Response): Promise<Response> {
  if (!response.headers.has("x-hutch-egress")) return response;
  throw failed((await response.text()).trim());
}

/** Of a tunnel that was refused, Deno tells no more than that: the reason is to be asked for. */
async function explained(error: any, why: (target: Target) => Promise<string | undefined>): Promise<unknown> {
  const text = `${error?.cause?.message ?? error?.message}`;
  const address = /for url \((.*?)\): .*unsuccessful tunnel/.exec(text)?.[1];
  if (address === undefined) return error;
  const { hostname: host, port } = new URL(address);
  const reason = await why({ host, port: Number(port || 443) });
  return reason === undefined ? error : failed(reason, error);
}

function failed(reason: string, cause?: unknown): TypeError {
  return new TypeError(`fetch failed: ${reason}`, { cause });
}
