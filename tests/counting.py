"""An API on loopback that counts what is asked of it, and keeps whom it is told to keep waiting."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.processes import PATIENCE, until


class Counting:
    """Answers GET with how often that path was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._held: dict[str, threading.Event] = {}
        self._failing: dict[str, int] = {}
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65_536

            def do_GET(self) -> None:
                upstream.asked[self.path] += 1
                count = upstream.asked[self.path]
                held = upstream._held.get(self.path)
                if held is not None:
                    held.wait(PATIENCE)
                status = 200 if count > upstream._failing.get(self.path, 0) else 500
                body = json.dumps({"path": self.path, "count": count}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Whoever asked was killed meanwhile."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def hold(self, path: str) -> None:
        """From now on whoever asks for it waits, until it is let go."""
        self._held[path] = threading.Event()

    def let_go(self, path: str) -> None:
        self._held.pop(path).set()

    def fail(self, path: str, times: int) -> None:
        """The first so many get an error."""
        self._failing[path] = times

    def until_asked(self, path: str, times: int = 1) -> None:
        until(lambda: self.asked[path] >= times)

    def step(self, name: str) -> dict[str, Any]:
        """The `with` of a step that asks for a path of that name."""
        return {"url": self.url(f"/{name}")}

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._held.values():
            held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)
