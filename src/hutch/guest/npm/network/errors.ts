/** Errors of failed connections and requests, with the names, messages and codes that Node has for them. */

import type { Target } from "./tunnel.ts";

const { assign } = Object;

/** Error numbers of libuv by code. */
const NUMBERS: Record<string, number> = {
  EACCES: -13,
  ECONNREFUSED: -111,
  ECONNRESET: -104,
  EHOSTUNREACH: -113,
  ENETUNREACH: -101,
  ENOTFOUND: -3008,
  EAI_AGAIN: -3001,
  EPIPE: -32,
  ETIMEDOUT: -110,
};

/** Error codes by the number of the system error (errno) in Deno's messages. */
const SYSTEM_ERRORS: Record<string, string> = {
  32: "EPIPE",
  101: "ENETUNREACH",
  104: "ECONNRESET",
  110: "ETIMEDOUT",
  111: "ECONNREFUSED",
  113: "EHOSTUNREACH",
};

/** Maps words in Deno's messages to Node's codes and messages. The first match counts. */
const CAUSES: [words: RegExp, code: string, message: string][] = [
  [
    /tls handshake eof/,
    "ECONNRESET",
    "Client network socket disconnected before secure TLS connection was established",
  ],
  [/certificate: (?:certificate )?expired/i, "CERT_HAS_EXPIRED", "certificate has expired"],
  [
    /certificate not valid for name|NotValidForName/i,
    "ERR_TLS_CERT_ALTNAME_INVALID",
    "Hostname/IP does not match certificate's altnames",
  ],
  [/UnknownIssuer/, "UNABLE_TO_VERIFY_LEAF_SIGNATURE", "unable to verify the first certificate"],
  [/connection closed|unexpected (?:end of file|eof)|IncompleteMessage|SendRequest/i, "UND_ERR_SOCKET", ""],
];

/**
 * Returns the error for a connection that the proxy refused or could not open, with the code and reason of
 * the proxy.
 */
export function connectionError({ host, port }: Target, code: string, reason: string): Error {
  if (code === "ENOTFOUND" || code === "EAI_AGAIN") {
    const fields = { syscall: "getaddrinfo", hostname: host };
    return nodeError(`getaddrinfo ${code} ${host}`, code, fields);
  }
  if (code === "ECONNRESET") return nodeError("read ECONNRESET", code, { syscall: "read" });
  if (code === "UND_ERR_SOCKET") return otherSideClosed();
  if (!(code in NUMBERS) && !/^E[A-Z]+$/.test(code)) return nodeError(reason, code);
  // Add the reason, because only the proxy knows why it refuses a destination.
  const detail = code === "EACCES" ? `: ${reason}` : "";
  const fields = { syscall: "connect", address: host, port };
  return nodeError(`connect ${code} ${host}:${port}${detail}`, code, fields);
}

/** Returns the error of a connection attempt while the network is blocked. */
export function refusedError(reason: string): Error {
  return nodeError(reason, "EACCES", { syscall: "connect" });
}

/** Returns the error that Node's `fetch` throws for this cause. */
export function fetchError(cause: unknown): TypeError {
  return new TypeError("fetch failed", { cause });
}

/**
 * Converts the cause that Deno reports for a failed `fetch` to Node's error. Returns an unknown cause
 * unchanged.
 */
export function translateCause(cause: Error): Error {
  const number = /\(os error (\d+)\)/.exec(cause.message)?.[1];
  const code = number === undefined ? undefined : SYSTEM_ERRORS[number];
  if (code !== undefined) return nodeError(`read ${code}`, code, { syscall: "read" });
  for (const [words, code, message] of CAUSES) {
    if (words.test(cause.message)) return message ? nodeError(message, code) : otherSideClosed();
  }
  return cause;
}

/**
 * Converts an error of reading a body to Node's error. Returns errors that are not about the connection
 * unchanged.
 */
export function bodyError(error: unknown): unknown {
  const isLost = error instanceof TypeError &&
    error.message.startsWith("error reading a body from connection");
  return isLost ? new TypeError("terminated", { cause: otherSideClosed() }) : error;
}

function otherSideClosed(): Error {
  return assign(nodeError("other side closed", "UND_ERR_SOCKET"), { name: "SocketError" });
}

function nodeError(message: string, code: string, fields: object = {}): Error {
  const errno = NUMBERS[code];
  return assign(new Error(message), errno === undefined ? {} : { errno }, { code }, fields);
}
