"""A hostile package reaches the public internet and allowed hosts, but nothing internal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from itertools import islice

from tests.contract.tpmjs.harness import SyncServer, ToolServer, tool
from tests.hostile.guests.attempts import program, successes

BEFORE = """
    import http from "node:http";
    import https from "node:https";
    import net from "node:net";
    import dns from "node:dns/promises";
    import dgram from "node:dgram";
    const request = (client, url) => new Promise((resolve, reject) =>
      client.get(url, (answer) => resolve(answer.statusCode)).on("error", reject));
    const open = (...where) => new Promise((resolve, reject) =>
      net.connect(...where).on("connect", () => resolve("open")).on("error", reject));
    // There, nothing of Deno has been replaced.
    const inThread = (code) => new Promise((resolve, reject) => {
      const source = `const attempt = async () => { ${code} };
        attempt().then((got) => postMessage({ got }), (error) => postMessage({ error: error.message }))`;
      const worker = new Worker("data:text/javascript," + encodeURIComponent(source), { type: "module" });
      worker.onmessage = ({ data: { got, error } }) => error ? reject(new Error(error)) : resolve(got);
    });
"""

# Loopback, private networks and metadata services in all notations. The tests replace `PORT` by a port with a
# server.
INTERNAL = (
    "127.0.0.1:PORT",
    "localhost:PORT",
    "localhost.:PORT",
    "LOCALHOST:PORT",
    "2130706433:PORT",
    "0x7f000001:PORT",
    "0x7f.1:PORT",
    "0177.0.0.1:PORT",
    "127.1:PORT",
    "0:PORT",
    "0.0.0.0:PORT",
    "①②⑦.⓪.⓪.①:PORT",
    "[::1]:PORT",
    "[::]:PORT",
    "[::ffff:127.0.0.1]:PORT",
    "[::ffff:7f00:1]:PORT",
    "[64:ff9b::7f00:1]:PORT",
    "127.0.0.1:3128",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "100.100.100.200",
    "224.0.0.1",
)


async def test_internal_addresses_are_unreachable_in_every_notation(tools: ToolServer) -> None:
    addresses = [address.replace("PORT", str(tools.npm.port)) for address in INTERNAL]
    fetched = {f"fetch {each}": f"return (await fetch('http://{each}/')).status" for each in addresses}
    secured = {f"secure {each}": f"return (await fetch('https://{each}/')).status" for each in addresses[::4]}
    by_node = {f"node {each}": f"return await request(http, 'http://{each}/')" for each in addresses[::3]}
    answer = await tools.run(tool(program({**fetched, **secured, **by_node}), BEFORE))
    assert answer["success"] is True, answer
    assert len(answer["output"]) == len(fetched) + len(secured) + len(by_node)
    assert successes(answer["output"]) == {}


async def test_refusal_names_the_reason(tools: ToolServer) -> None:
    url = f"http://127.0.0.1:{tools.npm.port}/"
    answer = await tools.run(tool(f"await fetch('{url}')"))
    assert answer["error"]["code"] == "TOOL_EXECUTION_ERROR"
    assert "127.0.0.1 is a loopback address" in answer["error"]["message"]
    assert "egress_allow" in answer["error"]["message"]


async def test_allowed_host_is_reachable(tools: ToolServer, sync: SyncServer) -> None:
    """Shows that requests to allowed hosts succeed. Otherwise the refusals in other tests would prove
    nothing.
    """
    url = json.dumps(f"{sync.url}/ready/reached")
    allowed = {
        "fetch": f"return (await fetch({url})).status",
        "a request": f"return (await fetch(new Request({url}))).status",
        "node": f"return await request(http, {url})",
    }
    answer = await tools.run(tool(program(allowed), BEFORE))
    assert answer["output"] == dict.fromkeys(allowed, "got 200")


async def test_redirect_to_an_internal_address_is_refused(tools: ToolServer, sync: SyncServer) -> None:
    before = len(tools.npm.requests)
    package = tools.publish(tool("return (await fetch(params.url)).status"))
    asked = len(tools.npm.requests)
    answer = await tools.execute(package, params={"url": f"{sync.url}/redirect/{tools.npm.port}"})
    assert "127.0.0.1 is a loopback address" in answer["error"]["message"]
    # The redirect led to the registry. The registry got no request other than those for the package's
    # installation.
    requests = tools.npm.requests[before:asked] + tools.npm.requests[asked:]
    assert {each.partition("@")[0] for each in requests} == {package}


async def test_other_protocols_and_raw_sockets_cannot_connect(tools: ToolServer) -> None:
    port = tools.npm.port
    connect = f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
    get = f"GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
    raw_request = """
        const c = await Deno.connect({ hostname: "127.0.0.1", port: 3128 });
        await c.write(new TextEncoder().encode("%s"));
        const b = new Uint8Array(999), n = await c.read(b), text = new TextDecoder().decode(b.subarray(0, n));
        if (/^HTTP.1.1 [45]/.test(text)) throw new Error(text);
        return text;
    """
    attempts = {
        "names": "return await Deno.resolveDns('name.invalid', 'A')",
        "names by Node": "return (await dns.lookup('name.invalid')).address",
        "names by a server": (
            "const resolver = new dns.Resolver(); resolver.setServers(['192.0.2.1']);"
            "return await resolver.resolve4('name.invalid')"
        ),
        "a datagram": (
            "return await new Promise((resolve, reject) => dgram.createSocket('udp4').on('error', reject)"
            ".send('x', 53, '192.0.2.1', (error) => error ? reject(error) : resolve('sent')))"
        ),
        "a WebSocket": (
            f"const socket = new WebSocket('ws://127.0.0.1:{port}');"
            " return await new Promise((resolve, reject) =>"
            " Object.assign(socket, { onopen: () => resolve('open'), onerror: reject }))"
        ),
        "TCP": f"return (await Deno.connect({{ hostname: '127.0.0.1', port: {port} }})) && 'open'",
        "TCP by Node": f"return await open({port}, '127.0.0.1')",
        "mail": "return await open(25, 'mail.invalid')",
        "TCP in a thread": (
            f"return await inThread(`return (await Deno.connect({{ port: {port} }})).localAddr`)"
        ),
        "a fetch in a thread": (
            f"return await inThread(`return (await fetch('http://127.0.0.1:{port}')).status`)"
        ),
        "the proxy's tunnel": f"return await inThread({json.dumps(raw_request % connect)})",
        "the proxy itself": f"return await inThread({json.dumps(raw_request % get)})",
        "a proxy of its own": (
            "return (await fetch('http://name.invalid', { client: Deno.createHttpClient("
            f"{{ proxy: {{ url: 'http://127.0.0.1:{port}' }} }}) }})).status"
        ),
        "a socket of the host": "return await open('/run/docker.sock')",
        "an abstract socket": "return await open('\\0/tmp/.X11-unix/X0')",
    }
    # Make few attempts in each call. Starting threads takes long on a busy machine, and a tool has little
    # time.
    for some in batched(attempts, 5):
        answer = await tools.run(tool(program({name: attempts[name] for name in some}), BEFORE))
        assert answer["success"] is True, answer
        assert {*answer["output"]} == {*some}
        assert successes(answer["output"]) == {}


def batched(items: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    iterator = iter(items)
    while some := tuple(islice(iterator, size)):
        yield some


async def test_two_jails_cannot_connect_to_each_other(tools: ToolServer, sync: SyncServer) -> None:
    listener = tools.publish(
        tool(
            "const server = net.createServer((s) => s.end('reply')).listen(4000, '0.0.0.0');"
            " await new Promise((r) => server.on('listening', r));"
            " await fetch(params.sync + '/ready/listening'); await fetch(params.sync + '/wait/called');"
            " return 'listened'",
            BEFORE,
        )
    )
    caller = tools.publish(
        tool(
            "return await inThread(`return (await Deno.connect({ port: 4000 })).localAddr`)",
            BEFORE,
        )
    )
    # Install both packages first, because the listener waits only a short time for the caller.
    await asyncio.gather(tools.execute(caller), tools.execute(listener, "-"))
    listening = asyncio.create_task(tools.execute(listener, params={"sync": sync.url}))
    await sync.wait_ready("listening")
    answer = await tools.execute(caller)
    sync.release("called")
    assert (await listening).get("output") == "listened", listening.result()
    assert answer["error"]["code"] == "TOOL_EXECUTION_ERROR"
    assert "refused" in answer["error"]["message"].lower()
