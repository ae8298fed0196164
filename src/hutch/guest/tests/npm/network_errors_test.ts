/** Tests of the errors of failed requests. */

import assert from "node:assert";
import { messageOf } from "../../npm/errors.ts";
import { bodyError, connectionError, fetchError, translateCause } from "../../npm/network/errors.ts";

const TARGET = { host: "some.example", port: 8443 };

Deno.test("errors of connections have the fields of Node", () => {
  const cases: [code: string, message: string, fields: object][] = [
    ["ENOTFOUND", "getaddrinfo ENOTFOUND some.example", {
      errno: -3008,
      syscall: "getaddrinfo",
      hostname: "some.example",
    }],
    ["ECONNREFUSED", "connect ECONNREFUSED some.example:8443", {
      errno: -111,
      syscall: "connect",
      address: "some.example",
      port: 8443,
    }],
    ["EACCES", "connect EACCES some.example:8443: because", { errno: -13, syscall: "connect" }],
    ["ENETDOWN", "connect ENETDOWN some.example:8443", { syscall: "connect" }],
    ["ECONNRESET", "read ECONNRESET", { errno: -104, syscall: "read" }],
    ["UND_ERR_SOCKET", "other side closed", { name: "SocketError" }],
    ["HPE_INVALID_CONSTANT", "because", {}],
  ];
  for (const [code, message, fields] of cases) {
    const error: any = connectionError(TARGET, code, "because");
    assert.strictEqual(error.message, message);
    for (const [name, value] of Object.entries({ code, ...fields })) {
      assert.strictEqual(error[name], value, `${code} ${name}`);
    }
  }
});

Deno.test("causes that Deno reports get the codes of Node", () => {
  const url = "error sending request for url (https://some.example/): client error";
  const cases = {
    "(Connect): Connection reset by peer (os error 104)": "ECONNRESET",
    "(SendRequest): connection error: Broken pipe (os error 32)": "EPIPE",
    "(Connect): tls handshake eof": "ECONNRESET",
    "(Connect): invalid peer certificate: UnknownIssuer": "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
    "(Connect): invalid peer certificate: certificate expired: verification time 2": "CERT_HAS_EXPIRED",
    '(Connect): invalid peer certificate: certificate not valid for name "a"': "ERR_TLS_CERT_ALTNAME_INVALID",
    "(SendRequest): connection closed before message completed": "UND_ERR_SOCKET",
  };
  for (const [text, code] of Object.entries(cases)) {
    assert.strictEqual((translateCause(new Error(`${url} ${text}`)) as any).code, code, text);
  }
  const unknown = new Error(`${url} (Connect): something new`);
  assert.strictEqual(translateCause(unknown), unknown);
});

Deno.test("only errors of the connection are errors of a terminated body", () => {
  const error: any = bodyError(new TypeError("error reading a body from connection"));
  assert.strictEqual(`${error}`, "TypeError: terminated");
  assert.strictEqual(error.cause.code, "UND_ERR_SOCKET");
  const other = new SyntaxError("Unexpected token");
  assert.strictEqual(bodyError(other), other);
});

Deno.test("the message of a failed request contains its cause", () => {
  const error = fetchError(connectionError(TARGET, "ENOTFOUND", ""));
  assert.strictEqual(`${error}`, "TypeError: fetch failed");
  assert.strictEqual(messageOf(error), "fetch failed: getaddrinfo ENOTFOUND some.example");
  assert.strictEqual(messageOf(new TypeError("fetch failed")), "fetch failed");
  assert.strictEqual(messageOf(new Error("other", { cause: error })), "other");
});
