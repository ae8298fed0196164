from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.egress.guests import Guests
from tests.egress.servers import LOCAL, echo, http, serving

from hutch.egress import resolver
from hutch.egress.policy import Policy

PRIVATE = "10.0.0.1 is a private address; the operator can allow it with the setting egress_allow."
UNKNOWN = "no.example cannot be resolved: name or service not known."
CLIENTS = ("fetch", "node:http", "axios", "got", "node-fetch", "undici", "undici.fetch")
# Each gets a URL, and the authorities to trust beside the usual ones, and gives the answer's text.
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
  const told = {};
  for (const name in clients) {
    told[name] = await attempt(() => clients[name](url, ca));
    const error = /: fetch failed$/.test(told[name]) && name === "undici.fetch";
    // undici has the reason in the cause.
    if (error) told[name] = await clients[name](url).catch((error) => `${error.cause}`);
  }
  return told;
};
"""


@pytest.fixture(scope="module")
async def guests(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guests]:
    made = await asyncio.to_thread(Guests, tmp_path_factory.mktemp("tree"))
    yield made
    await made.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority of our own, in ca.pem, and a server's certificate by it, in server.pem."""
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
    """Nobody outside is asked for names."""

    def lookup(name: str) -> list[str]:
        if name != "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ["127.0.0.1"]

    monkeypatch.setattr(resolver, "lookup", lookup)


async def test_http_clients_reach_what_is_allowed(guests: Guests) -> None:
    code = COMMON + "export default (port) => all(`http://localhost:${port}/path?q`);"
    async with serving(http) as port:
        assert await guests.run(code, port, policy=LOCAL) == dict.fromkeys(CLIENTS, "GET /path?q ")


async def test_http_clients_are_told_why_not(guests: Guests) -> None:
    code = COMMON + "export default async (...urls) => Promise.all(urls.map((url) => all(url)));"
    urls = ("http://10.0.0.1/", "https://10.0.0.1/", "http://no.example/", "https://no.example/")
    async with serving(http) as port:
        redirect = f"http://127.0.0.1:{port}/redirect"
        told = await guests.run(code, *urls, redirect, policy=LOCAL)
    for reason, answers in zip((PRIVATE, PRIVATE, UNKNOWN, UNKNOWN, PRIVATE), told, strict=True):
        for name in CLIENTS:
            # Neither of these follows redirects.
            if answers is not told[-1] or name not in ("node:http", "undici"):
                assert reason in answers[name], name


async def test_certificates_are_checked_in_the_guest(guests: Guests, authority: Path) -> None:
    code = COMMON + "export default async (url, ca) => [await all(url), await all(url, ca)];"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    async with serving(http, context) as port:
        url = f"https://localhost:{port}/x"
        distrusted, trusted = await guests.run(code, url, (authority / "ca.pem").read_text(), policy=LOCAL)
    for name in CLIENTS:
        assert "Error" in distrusted[name], name
        assert name == "undici.fetch" or trusted[name] == "GET /x ", name
    assert "unable to verify the first certificate" in distrusted["node:http"]


async def test_requests_keep_their_method_headers_and_body(guests: Guests) -> None:
    code = """export default async (url) => [
      await (await fetch(url, { method: "POST", body: "abc" })).text(),
      await (await fetch(new Request(url, { method: "PUT", body: "abc" }))).text(),
      await (await fetch(new Request(url), { method: "PATCH", body: "abc" })).text(),
      await (await fetch(url, new Request("http://other/", { method: "DELETE" }))).text(),
    ]"""
    async with serving(http) as port:
        told = await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL)
    assert told == ["POST / abc", "PUT / abc", "PATCH / abc", "DELETE / "]


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
        told = await guests.run(code, f"ws://localhost:{port}/", policy=LOCAL)
    assert told[:4] == ["heard hello as None", "heard hello as a", "heard hello as None", True]
    assert told[4].startswith("Error: ")
    assert PRIVATE in told[5]


async def test_sockets_of_node_work_at_once_and_in_both_directions(guests: Guests) -> None:
    """Also while the package's first module is still being evaluated, and if the server speaks first."""

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
    async with serving(greet) as port, serving(http) as other:
        told = await guests.run(code, port, other, policy=Policy("public", ("127.0.0.1",)), kind="cjs")
    assert told[:3] == ["GET /early ", "welcome\nxx1000008", "welcome\nxx1000008"]
    assert "connect EACCES localhost:25: Port 25 is not one for HTTP; the operator can allow" in told[3]
    assert "ENOENT" in told[4]
    assert "RangeError" in told[5]


async def test_what_cannot_go_through_a_proxy_says_so(guests: Guests) -> None:
    # As almost every package does sooner or later; without it, UDP fails in the system's words.
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
    told = await guests.run(code, policy=LOCAL)
    names = ("Deno.connect", "Deno.connectTls", "Deno.resolveDns", "EventSource", "UDP")
    for name, text in zip(names, told, strict=True):
        assert text.startswith("Error: Hutch: tools reach the network over HTTP(S)")
        assert text.endswith(f"{name} cannot be used")


async def test_without_a_network_everything_fails_and_says_so(guests: Guests) -> None:
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
    told = await guests.run(code, policy=Policy("none"))
    assert told.keys() == {*CLIENTS, "WebSocket", "ws", "connect", "resolve"}
    for name, text in told.items():
        assert "Network access is off for this tool" in text, name
    told = await guests.run(code, "Because.", policy=Policy("none"))
    assert all("Because." in text for text in told.values())


async def test_who_needs_nothing_of_node_does_not_wait_for_it(guests: Guests) -> None:
    code = "export default async (url) => [await (await fetch(url)).text(), loads, typeof process, loads > 0]"
    async with serving(http) as port:
        told = await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL)
    assert told == ["GET / ", 0, "object", True]


async def test_many_requests_at_once_all_get_through(guests: Guests) -> None:
    code = """import http from "node:http";
    const get = (url) => new Promise((resolve, reject) => http.get(url, (response) =>
      response.resume().on("end", () => resolve(response.statusCode))).on("error", reject));
    export default async (url) => {
      const told = await Promise.all(Array.from({ length: 300 }, (_, i) => i % 2 ? get(url)
        : fetch(url).then(async (response) => (await response.text(), response.status))));
      return told.filter((status) => status === 200).length;
    }"""
    async with serving(http) as port:
        assert await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL) == 300


async def test_large_bodies_pass_unharmed(guests: Guests) -> None:
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
    async with serving(upload) as port:
        assert await guests.run(code, f"http://127.0.0.1:{port}/", policy=LOCAL) == [True, True]
