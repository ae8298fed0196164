"""Serves ASGI applications on loopback, in a thread with its own event loop."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import uvicorn


class AsgiServer:
    """A server with an address that is known before its start. It can be stopped and restarted at the same
    address.
    """

    def __init__(self) -> None:
        self.port = 0
        self._listener: socket.socket | None = self._bind()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, app: Any) -> None:
        listener, self._listener = self._listener or self._bind(), None
        config = uvicorn.Config(
            app,
            log_level="critical",
            ws="none",
            loop="asyncio",
            timeout_graceful_shutdown=0,
        )
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert self._thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def _bind(self) -> socket.socket:
        # Give the protocol explicitly, because otherwise asyncio does not disable Nagle's algorithm.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        return listener

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(30)
            self._server = None
            # Ignore warnings, because the SDK's servers do not close their streams when they are stopped in
            # this way.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


@contextlib.contextmanager
def running_app(app: Any) -> Iterator[AsgiServer]:
    served = AsgiServer()
    served.start(app)
    try:
        yield served
    finally:
        served.stop()
