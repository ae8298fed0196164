"""HTTP servers on loopback that run in a thread of the test process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from tests.support.processes import TIMEOUT_SECONDS


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing. Sends headers and body at once, because otherwise the body would wait until the client
    has acknowledged the headers.
    """

    wbufsize = 65_536

    def log_message(self, *_: object) -> None:
        pass


class ThreadedHttpServer:
    """Serves between `__enter__` and `__exit__`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT_SECONDS)
