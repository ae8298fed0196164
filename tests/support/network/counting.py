"""HTTP API on loopback that counts requests, and can delay or fail responses."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.processes import TIMEOUT_SECONDS, wait_until


class CountingApi:
    """Answers each GET with the number of requests for its path so far."""

    def __init__(self) -> None:
        self.request_counts: Counter[str] = Counter()
        self._held: dict[str, threading.Event] = {}
        self._failing: dict[str, int] = {}
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65_536

            def do_GET(self) -> None:
                upstream.request_counts[self.path] += 1
                count = upstream.request_counts[self.path]
                held = upstream._held.get(self.path)
                if held is not None:
                    held.wait(TIMEOUT_SECONDS)
                status = 200 if count > upstream._failing.get(self.path, 0) else 500
                body = json.dumps({"path": self.path, "count": count}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class QuietServer(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Ignores clients that were killed meanwhile."""

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def hold(self, path: str) -> None:
        """Delays responses for this path until `release`."""
        self._held[path] = threading.Event()

    def release(self, path: str) -> None:
        self._held.pop(path).set()

    def fail(self, path: str, times: int) -> None:
        """Answers the first `times` requests with an error."""
        self._failing[path] = times

    def wait_for_request(self, path: str, times: int = 1) -> None:
        wait_until(lambda: self.request_counts[path] >= times)

    def step(self, name: str) -> dict[str, Any]:
        """Returns the `with` of a step that requests this path."""
        return {"url": self.url(f"/{name}")}

    def __enter__(self) -> CountingApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._held.values():
            held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT_SECONDS)
