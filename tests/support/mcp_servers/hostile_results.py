"""MCP server whose tool `t` returns results that take long to decode.

The first argument is `stdio`, `http` or `events` (HTTP with server-sent events), and the second
argument is the name of the result. Over HTTP, the server prints its port first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RESULTS: dict[str, Callable[[], bytes]] = {
    "invalid blocks": lambda: b'"result":{"content":[' + b'{"type":"x"},' * 40_000 + b"1]}",
    "few invalid blocks": lambda: b'"result":{"content":[' + b'{"type":"x"},' * 999 + b"1]}",
    "blocks": lambda: b'"result":{"content":[' + _list(b'{"type":"text","text":"a"}', 10_000) + b"]}",
    "values": lambda: b'"result":{"content":[],"structuredContent":{"a":[' + _list(b"{}", 900_000) + b"]}}",
    "data of an error": lambda: b'"error":{"code":-1,"message":"a","data":[' + _list(b"{}", 900_000) + b"]}",
    "quotes": lambda: b'"result":{"content":[{"type":"text","text":"' + b'\\"' * 4_000_000 + b'"}]}',
    "honest": lambda: b'"result":{"content":[{"type":"text","text":"honest"}]}',
}


def _list(item: bytes, count: int) -> bytes:
    return b",".join([item] * count)


def answer(message: dict[str, Any], result: str) -> bytes:
    head = b'{"jsonrpc":"2.0","id":%b,' % json.dumps(message["id"]).encode()
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
        return head + b'"result":%b}' % json.dumps({"protocolVersion": version, **info}).encode()
    if message["method"] == "tools/list":
        return head + b'"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}}'
    if message["method"] == "tools/call":
        return head + RESULTS[result]() + b"}"
    return head + b'"error":{"code":-32601,"message":"unknown"}}'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._respond(
            200 if "id" in message else 202, answer(message, sys.argv[2]) if "id" in message else b""
        )

    def do_GET(self) -> None:
        self._respond(405, b"")

    def _respond(self, status: int, body: bytes) -> None:
        is_events = sys.argv[1] == "events" and body
        if is_events:
            body = b": ready\r\n\r\nid: 1\r\ndata: " + body + b"\r\n\r\n"
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if is_events else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing."""


def main() -> None:
    if sys.argv[1] != "stdio":
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(server.server_address[1], flush=True)
        server.serve_forever()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            sys.stdout.buffer.write(answer(message, sys.argv[2]) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
