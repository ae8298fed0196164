from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.egress.guests import Guests
from tests.egress.servers import LOCAL, echo, echo_http, run_server

from hutch.egress import resolver
from hutch.egress.policy import EgressPolicy

PRIVATE = "10.0.0.1 is a private address; the operator can allow it with the setting egress_allow."
UNKNOWN = "getaddrinfo ENOTFOUND no.example"
CLIENTS = ("fetch", "node:http", "axios", "got", "node-fetch", "undici", "undici.fetch")
# JavaScript functions, each of which requests a URL with another HTTP client and returns the text of the
# response. If `ca` is given, the client trusts this certificate authority.
COMMON = """
import http from "node:http";
import https from "node:https";
import axios from "axios";
import got from "got";
import nodeFetch from "node-fetch";
import * as undici from "undici";
const agent = (ca) => ca && new https.Agent({ ca });
const clients = {
  "fetch": async (url, ca) => {
    const client = ca && Deno.createHttpClient({ caCerts: [ca] });
    return await (await fetch(url, { client })).text();
  },
  "node:http": (url, ca) => new Promise((resolve, reject) => {
    const receive = (response) => {
      let text = "";
      response.on("data", (part) => text += part).on("end", () => resolve(text));
    };
    (url.startsWith("https") ? https : http).get(url, { ca }, receive).on("error", reject);
  }),
  "axios": async (url, ca) => (await axios.get(url, { httpsAgent: agent(ca), responseType: "text" })).data,
  "got": (url, ca) => got(url, { https: { certificateAuthority: ca }, retry: { limit: 0 } }).text(),
  "node-fetch": async (url, ca) => await (await nodeFetch(url, { agent: agent(ca) })).text(),
  "undici": async (url, ca) => {
    const dispatcher = new undici.Agent({ connect: { ca } });
    return await (await undici.request(url, { dispatcher })).body.text();
  },
  "undici.fetch": async (url) => await (await undici.fetch(url)).text(),
};
const all = async (url, ca) => {
  const results = {};
  for (const name in clients) results[name] = await attempt(() => clients[name](url, ca));
  return results;
};
// Returns name and message of an error, and the code and message of the error that says why.
const describe = async (action) => {
  try {
    return String(await action());
  } catch (error) {
    const { code, message } = error.message === "fetch failed" ? error.cause : error;
    return { name: error.name, message: error.message, code, reason: message };
  }
};
"""


@pytest.fixture(scope="module")
async def guests(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guests]:
    made = await asyncio.to_thread(Guests, tmp_path_factory.mktemp("tree"))
    yield made
    await made.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority in ca.pem, and a server certificate signed by it in server.pem."""
    folder = tmp_path_factory.mktemp("authority")
    openssl = shutil.which("openssl")
    assert openssl is not None, "the tests need openssl"
    new = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    by = ["-CA", "ca.pem", "-CAkey", "ca.key"]
    for arguments in (
        [*new, "-subj", "/CN=Test", "-keyout", "ca.key", "-out", "ca.pem"],
        [*new, *names, *by, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.pem"],
    ):
        subprocess.run(arguments, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the resolver of names by one that knows only `localhost`."""

    def lookup(name: str) -> list[str]:
        if name != "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ["127.0.0.1"]

    monkeypatch.setattr(resolver, "lookup", lookup)


async def test_http_clients_reach_permitted_hosts(guests: Guests) -> None:
    code = COMMON + "export default (port) => all(`http://localhost:${port}/path?q`);"
    async with run_server(echo_http) as port:
        assert await guests.run(code, port, policy=LOCAL) == dict.fromkeys(CLIENTS, "GET /path?q ")


async def test_http_clients_get_the_reason_of_a_refusal(guests: Guests) -> None:
    code = COMMON + "export default async (...urls) => Promise.all(urls.map((url) => all(url)));"
    urls = ("http://10.0.0.1/", "https://10.0.0.1/", "http://no.example/", "https://no.example/")
    async with run_server(echo_http) as port:
        redirect = f"http://127.0.0.1:{port}/redirect"
        result = await guests.run(code, *urls, redirect, policy=LOCAL)
    for reason, answers in zip((PRIVATE, PRIVATE, UNKNOWN, UNKNOWN, PRIVATE), result, strict=True):
        for name in CLIENTS:
            # The last URL redirects to a private address. These two clients do not follow redirects.
            if answers is not result[-1] or name not in ("node:http", "undici"):
                assert reason in answers[name], name


def reset(writer: asyncio.StreamWriter) -> None:
    """Makes this connection end with a reset when it is closed."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def test_failed_requests_have_the_codes_of_node(
    guests: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> socket.socket:
        await asyncio.sleep(60)
        raise AssertionError

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async def reset_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reset(writer)

    connect_to = resolver._connect_to

    async def connect(address: resolver.Address, port: int) -> socket.socket:
        return await (hang() if port == 1234 else connect_to(address, port))

    monkeypatch.setattr(resolver, "_connect_to", connect)
    monkeypatch.setattr(resolver, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        refused = gone.getsockname()[1]
    code = (
        COMMON
        + """export default async (...urls) => Object.fromEntries(await Promise.all(urls.map(async (url) =>
      [url, Object.fromEntries(await Promise.all(Object.keys(clients).map(async (name) =>
        [name, await describe(() => clients[name](url))])))])));"""
    )
    async with run_server(close) as closing, run_server(reset_connection) as resetting:
        expected = {
            "http://no.example/": "ENOTFOUND",
            "https://no.example/": "ENOTFOUND",
            "http://10.0.0.1/": "EACCES",
            "https://10.0.0.1/": "EACCES",
            f"http://localhost:{refused}/": "ECONNREFUSED",
            f"https://localhost:{refused}/": "ECONNREFUSED",
            "http://localhost:1234/": "ETIMEDOUT",
            "https://localhost:1234/": "ETIMEDOUT",
            f"http://localhost:{closing}/": "ECONNRESET",
            f"http://localhost:{resetting}/": "ECONNRESET",
        }
        result = await guests.run(code, *expected, policy=LOCAL)
    for url, error_code in expected.items():
        for name in CLIENTS:
            error = result[url][name]
            # If the server closes the connection without a reset, the clients based on undici report
            # UND_ERR_SOCKET.
            closed = str(closing) in url and name in ("fetch", "undici", "undici.fetch")
            assert error["code"] == ("UND_ERR_SOCKET" if closed else error_code), (url, name, error)
            if name in ("fetch", "undici.fetch"):
                assert (error["name"], error["message"]) == ("TypeError", "fetch failed")
    assert result["https://no.example/"]["fetch"]["reason"] == "getaddrinfo ENOTFOUND no.example"
    refusal = result[f"https://localhost:{refused}/"]["fetch"]["reason"]
    assert refusal == f"connect ECONNREFUSED localhost:{refused}"
    assert result["https://10.0.0.1/"]["fetch"]["reason"] == f"connect EACCES 10.0.0.1:443: {PRIVATE}"


async def test_other_errors_of_fetch_are_not_network_errors(guests: Guests) -> None:
    code = """export default async (url) => [
      await attempt(() => fetch("nonsense")),
      await attempt(() => fetch(url, { signal: AbortSignal.abort() })),
      await attempt(() => fetch(url, { signal: AbortSignal.abort(new TypeError("mine")) })),
      await attempt(() => fetch(url, { method: "GET", body: "x" })),
      await attempt(async () => (await fetch(url)).json()),
    ]"""
    async with run_server(echo_http) as port:
        result = await guests.run(code, f"http://localhost:{port}/", policy=LOCAL)
    assert [text.partition(":")[0] for text in result] == [
        "TypeError",
        "AbortError",
        "TypeError",
        "TypeError",
        "SyntaxError",
    ]
    assert "mine" in result[2]
    assert not [text for text in result if "fetch failed" in text]


async def test_retry_libraries_retry(guests: Guests) -> None:
    """The server fails once in each way before it answers with success."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        await reader.readuntil(b"\r\n\r\n")
        count += 1
        if count == 1:
            reset(writer)
        elif count == 3:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut")
        elif count > 3:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone")

    code = """import pRetry from "p-retry";
    import isNetworkError from "is-network-error";
    const options = { retries: 5, minTimeout: 1, maxTimeout: 1 };
    const retry = async (url) => {
      const errors = [];
      const onFailedAttempt = ({ error }) => void errors.push([error.message, isNetworkError(error)]);
      const get = async () => (await fetch(url)).text();
      const text = await pRetry(get, { ...options, onFailedAttempt }).catch((error) => error.message);
      return [text, errors];
    };
    export default async (...urls) => Promise.all(urls.map(retry))"""
    async with run_server(serve) as port:
        url = f"http://localhost:{port}/"
        recovered, unknown, refused = await guests.run(
            code, url, "https://no.example/", "http://10.0.0.1/", policy=LOCAL
        )
    failed, cut = ["fetch failed", True], ["terminated", True]
    assert recovered == ["done", [failed, failed, cut]]
    assert unknown == refused == ["fetch failed", [failed] * 6]


async def test_names_are_resolved_under_the_policy(guests: Guests, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    known = {
        "both.example": ["1.2.3.4", "2606:4700::1", "10.0.0.1"],
        "inside.example": ["10.0.0.1"],
        "api.example": ["1.2.3.5"],
    }

    def lookup(name: str) -> list[str]:
        asked.append(name)
        if name == "down.example":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[name]

    monkeypatch.setattr(resolver, "lookup", lookup)
    code = """import dns, { lookup } from "node:dns";
    import { lookup as lookupLater } from "node:dns/promises";
    const names = ["both.example", "api.example", "inside.example", "no.example", "down.example"];
    const error = ({ code, syscall, hostname }) => [code, syscall, hostname];
    const shown = (name) => lookupLater(name).then(({ address }) => address, error);
    export const all = () => Promise.all(names.map(shown));
    export default async (only) => only ? all() : [
      await all(),
      await dns.promises.lookup("both.example", { all: true }),
      await lookupLater("both.example", { family: 6 }),
      await new Promise((done) => lookup("both.example", { family: 4 }, (...args) => done(args))),
      await shown("localhost"), await shown("10.0.0.1"),
    ]"""
    result = await guests.run(code, policy=EgressPolicy("public"))
    failed = [[code, "getaddrinfo"] for code in ("ENOTFOUND", "ENOTFOUND", "EAI_AGAIN")]
    assert result[0][:2] == ["1.2.3.4", "1.2.3.5"]
    assert [each[:2] for each in result[0][2:]] == failed
    both = [{"address": "1.2.3.4", "family": 4}, {"address": "2606:4700::1", "family": 6}]
    assert result[1:4] == [both, both[1], [None, "1.2.3.4", 4]]
    assert result[4:] == ["127.0.0.1", "10.0.0.1"]
    asked.clear()
    for policy in (
        EgressPolicy("allowlist", ("api.example:8443",)),
        EgressPolicy("public", (), ("api.example:8443",)),
    ):
        refused, allowed, *others = await guests.run(code, "only", policy=policy)
        assert allowed == "1.2.3.5"
        assert {code for code, *_ in (refused, *others)} == {"ENOTFOUND"}
        # The resolver was asked only for the name that the policy allows.
        assert {*asked} == {"api.example"}


async def test_server_cannot_pretend_to_be_the_proxy(guests: Guests, authority: Path) -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Hutch-Egress: EACCES\r\nContent-Length: 6\r\n\r\nserved")

    code = """export default async (port, tls, ca) => [
      await (await fetch(`http://localhost:${port}/`)).text(),
      await (await fetch(`https://localhost:${tls}/`, {
        client: Deno.createHttpClient({ caCerts: [ca] }) })).text(),
    ]"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    async with run_server(pretend) as port, run_server(pretend, context) as tls:
        result = await guests.run(code, port, tls, (authority / "ca.pem").read_text(), policy=LOCAL)
    assert result == ["served", "served"]


async def test_certificates_are_verified_in_the_guest(guests: Guests, authority: Path) -> None:
    code = COMMON + "export default async (url, ca) => [await all(url), await all(url, ca)];"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    async with run_server(echo_http, context) as port:
        url = f"https://localhost:{port}/x"
        distrusted, trusted = await guests.run(code, url, (authority / "ca.pem").read_text(), policy=LOCAL)
    for name in CLIENTS:
        assert "Error" in distrusted[name], name
        assert name == "undici.fetch" or trusted[name] == "GET /x ", name
    for name in ("node:http", "fetch"):
        assert "unable to verify the first certificate" in distrusted[name]


async def test_requests_keep_their_method_headers_and_body(guests: Guests) -> None:
    code = """export default async (url) => [
      await (await fetch(url, { method: "POST", body: "abc" })).text(),
      await (await fetch(new Request(url, { method: "PUT", body: "abc" }))).text(),
      await (await fetch(new Request(url), { method: "PATCH", body: "abc" })).text(),
      await (await fetch(url, new Request("http://other/", { method: "DELETE" }))).text(),
    ]"""
    async with run_server(echo_http) as port:
        result = await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL)
    assert result == ["POST / abc", "PUT / abc", "PATCH / abc", "DELETE / "]


async def test_web_sockets_work(guests: Guests) -> None:
    async def answer(connection: websockets.ServerConnection) -> None:
        async for text in connection:
            await connection.send(f"heard {text!s} as {connection.subprotocol}")

    code = """import Ws from "ws";
    const talk = (socket) => new Promise((resolve, reject) => {
      socket.onopen = () => socket.send("hello");
      socket.onmessage = ({ data }) => { resolve(data); socket.close(); };
      socket.onerror = (event) => reject(new Error(event.message));
    });
    export default async (url) => [
      await talk(new WebSocket(url)), await talk(new WebSocket(url, ["a"])), await talk(new Ws(url)),
      new WebSocket(url) instanceof WebSocket, await attempt(() => talk(new WebSocket("ws://10.0.0.1/"))),
      await attempt(() => talk(new Ws("ws://10.0.0.1/"))),
    ]"""

    def select(_: websockets.ServerConnection, offered: Sequence[websockets.Subprotocol]) -> Any:
        return offered[0] if offered else None

    async with websockets.serve(answer, "127.0.0.1", 0, select_subprotocol=select) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        result = await guests.run(code, f"ws://localhost:{port}/", policy=LOCAL)
    assert result[:4] == ["heard hello as None", "heard hello as a", "heard hello as None", True]
    assert result[4].startswith("Error: ")
    assert PRIVATE in result[5]


async def test_node_sockets_work_concurrently_in_both_directions(guests: Guests) -> None:
    """Also tests connections that the package opens while its first module is evaluated, and servers that
    send data before the client does.
    """

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome\n")
        await echo(reader, writer)

    code = """const net = require("net"), http = require("http");
    const [, , port, other] = Deno.args;
    const early = new Promise((resolve, reject) => http.get(`http://localhost:${other}/early`, (response) =>
      response.on("data", (part) => resolve(String(part)))).on("error", reject));
    const talk = (...target) => new Promise((resolve, reject) => {
      let text = "";
      const socket = net.connect(...target, () => socket.end("x".repeat(1_000_000)));
      socket.setEncoding("utf8").on("data", (part) => text += part).on("error", reject);
      socket.on("close", () => resolve(text.slice(0, 10) + text.length));
    });
    module.exports = async () => [
      await early, await talk(port, "localhost"), await talk({ port, host: "127.0.0.1", noDelay: true }),
      await attempt(() => talk(25, "localhost")), await attempt(() => talk("/nowhere")),
      await attempt(() => talk({ host: "localhost", port: 70000 })),
    ]"""
    async with run_server(greet) as port, run_server(echo_http) as other:
        result = await guests.run(
            code, port, other, policy=EgressPolicy("public", ("127.0.0.1",)), kind="cjs"
        )
    assert result[:3] == ["GET /early ", "welcome\nxx1000008", "welcome\nxx1000008"]
    assert "connect EACCES localhost:25: Port 25 is not an HTTP port; the operator can allow" in result[3]
    assert "ENOENT" in result[4]
    assert "RangeError" in result[5]


async def test_unsupported_protocols_fail_with_a_clear_error(guests: Guests) -> None:
    # The code uses `process`, as almost every package does. If `process` is not loaded, UDP fails with an
    # error of the operating system instead of a clear message.
    code = """process.version;
    import dgram from "node:dgram";
    export default async () => [
      await attempt(() => Deno.connect({ hostname: "1.1.1.1", port: 443 })),
      await attempt(() => Deno.connectTls({ hostname: "1.1.1.1", port: 443 })),
      await attempt(() => Deno.resolveDns("example.com", "A")),
      await attempt(() => new EventSource("https://example.com/")),
      await attempt(() => new Promise((resolve, reject) => dgram.createSocket("udp4")
        .send("x", 53, "1.1.1.1", (error) => error ? reject(error) : resolve()))),
    ]"""
    result = await guests.run(code, policy=LOCAL)
    names = ("Deno.connect", "Deno.connectTls", "Deno.resolveDns", "EventSource", "UDP")
    for name, text in zip(names, result, strict=True):
        assert text.startswith("Error: Hutch: tools reach the network over HTTP(S)")
        assert text.endswith(f"{name} cannot be used")


async def test_without_a_network_everything_fails_with_a_clear_error(guests: Guests) -> None:
    code = (
        COMMON
        + """
    import Ws from "ws";
    const talk = (socket) => new Promise((_, reject) => socket.onerror = (event) => reject(event.error));
    export default async () => ({
      ...await all("https://example.com/"),
      WebSocket: await attempt(() => new WebSocket("wss://example.com/")),
      ws: await attempt(() => talk(new Ws("wss://example.com/"))),
      connect: await attempt(() => Deno.connect({ port: 80 })),
      resolve: await attempt(() => Deno.resolveDns("example.com", "A")),
    });"""
    )
    result = await guests.run(code, policy=EgressPolicy("none"))
    assert result.keys() == {*CLIENTS, "WebSocket", "ws", "connect", "resolve"}
    for name, text in result.items():
        assert "Network access is off for this tool" in text, name
    result = await guests.run(code, "Because.", policy=EgressPolicy("none"))
    assert all("Because." in text for text in result.values())


async def test_node_modules_are_not_loaded_unless_needed(guests: Guests) -> None:
    code = "export default async (url) => [await (await fetch(url)).text(), loads, typeof process, loads > 0]"
    async with run_server(echo_http) as port:
        result = await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL)
    assert result == ["GET / ", 0, "object", True]


async def test_many_concurrent_requests_succeed(guests: Guests) -> None:
    code = """import http from "node:http";
    const get = (url) => new Promise((resolve, reject) => http.get(url, (response) =>
      response.resume().on("end", () => resolve(response.statusCode))).on("error", reject));
    export default async (url) => {
      const statuses = await Promise.all(Array.from({ length: 300 }, (_, i) => i % 2 ? get(url)
        : fetch(url).then(async (response) => (await response.text(), response.status))));
      return statuses.filter((status) => status === 200).length;
    }"""
    async with run_server(echo_http) as port:
        assert await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL) == 300


async def test_large_bodies_are_not_changed(guests: Guests) -> None:
    size = 20_000_000

    async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body)
        await writer.drain()

    code = f"""import axios from "axios";
    export default async (url) => {{
      const data = new Uint8Array({size}).map((_, i) => i % 251);
      const same = (bytes) => bytes.length === data.length && bytes.every((byte, i) => byte === i % 251);
      const one = await (await fetch(url, {{ method: "POST", body: data }})).bytes();
      const two = (await axios.post(url, data, {{ responseType: "arraybuffer" }})).data;
      return [same(one), same(new Uint8Array(two))];
    }}"""
    async with run_server(upload) as port:
        assert await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL) == [True, True]
