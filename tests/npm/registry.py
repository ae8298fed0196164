"""npm registry on loopback that serves invented packages and simulates faults.

with registry.run_registry() as npm:
    npm.publish("greet", files={"index.js": "export const hello = …"})
    environment["NPM_CONFIG_REGISTRY"] = npm.url
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import socket
import ssl
import tarfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from tests.support.network.certificates import certificates

Fault = Literal["missing", "refused", "broken", "hangs", "drips", "lies", "garbage", "endless", "redirects"]
"""How requests for a package fail. missing: 404. refused: 403. broken: 500. hangs: no response. drips: one
byte at a time. garbage: 200 with HTML. redirects: in a loop. These apply to documents and tarballs; `lies`
(content that does not match the integrity) and `endless` apply to tarballs only.
"""

AUTHORITY = certificates().authority
"""Certificate authority of an invented company, which signed the certificate of `tls`."""

MODULE = "export const tool = { description: 'made up', execute: async (params) => params };\n"


class Registry:
    """The registry's published packages, faults and received requests. Tests may change them while the
    registry serves requests.
    """

    def __init__(self, *, token: str | None = None, context: ssl.SSLContext | None = None) -> None:
        self.token = token
        self.faults: dict[str, Fault] = {}
        """By package, or `name/tarball` for its tarballs only."""
        self.requests: list[str] = []
        """`name` for a document and `name@version` for a tarball, in order."""
        self.proxied: list[str] = []
        """Hosts that were requested through this server as a proxy."""
        self.tokens: list[str | None] = []
        self.stopped = threading.Event()
        self.context = context
        self._documents: dict[str, dict[str, Any]] = {}
        self._tarballs: dict[str, bytes] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.registry = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}/"

    def publish(
        self,
        name: str,
        version: str = "1.0.0",
        files: Mapping[str, str | bytes] | None = None,
        *,
        tag: str | None = "latest",
        tarball: bytes | None = None,
        dist: Mapping[str, Any] | None = None,
        **manifest: Any,
    ) -> None:
        """Publishes a version of a package. `manifest` has fields of the package.json. `dist` has fields of
        the version's `dist` in the registry's document.
        """
        described = {"name": name, "version": version, "type": "module", "main": "index.js", **manifest}
        if tarball is None:
            contents = {"index.js": MODULE} if files is None else dict(files)
            contents.setdefault("package.json", json.dumps(described))
            tarball = pack(contents)
        document = self._documents.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        record = {"tarball": f"{name}/-/{version}.tgz", "integrity": integrity(tarball), **(dist or {})}
        described["dist"] = {key: value for key, value in record.items() if value is not None}
        if "scripts" in manifest:
            described["hasInstallScript"] = True
        document["versions"][version] = described
        if tag is not None:
            document["dist-tags"][tag] = version
        self._tarballs[f"{name}@{version}"] = tarball

    def tag(self, name: str, tag: str, version: str) -> None:
        self._documents[name]["dist-tags"][tag] = version

    def unpublish(self, name: str) -> None:
        self._documents.pop(name, None)

    def count(self, name: str) -> int:
        """Returns the number of requests for a package's document and its tarballs."""
        return sum(1 for each in self.requests if each == name or each.startswith(f"{name}@"))

    def document(self, name: str, base: str) -> bytes | None:
        found = self._documents.get(name)
        if found is None:
            return None
        versions = {
            version: {**record, "dist": {**record["dist"], "tarball": base + record["dist"]["tarball"]}}
            for version, record in found["versions"].items()
        }
        return json.dumps({**found, "versions": versions}).encode()

    def tarball(self, name: str, version: str) -> bytes | None:
        return self._tarballs.get(f"{name}@{version}")

    def close(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def run_registry(**options: Any) -> Iterator[Registry]:
    registry = Registry(**options)
    try:
        yield registry
    finally:
        registry.close()


def tls(certificate: Path | None = None) -> ssl.SSLContext:
    """Returns a context for a TLS server. The default certificate is for 127.0.0.1 and registry.invalid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate or certificates().server)
    return context


def pack(files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None) -> bytes:
    """Creates a tarball in npm's format. Does not check the names of the files, so a test can use hostile
    names. `links` are symbolic links.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.type = tarfile.SYMTYPE
            entry.linkname = target
            archive.addfile(entry)
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


def pack_zeros(name: str, size: int) -> bytes:
    """Creates a small tarball that contains one large file. The end of the tarball is invalid, because a
    client should stop before it.
    """
    manifest = json.dumps({"name": name, "version": "1.0.0", "main": "index.js"}).encode()
    entry = tarfile.TarInfo("package/package.json")
    entry.size = len(manifest)
    zeros = tarfile.TarInfo("package/zeros")
    zeros.size = size
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(entry.tobuf() + manifest.ljust(512, b"\0") + zeros.tobuf())
    head += packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size >> 20) + packer.flush()


def pack_many(name: str, count: int) -> bytes:
    manifest = json.dumps({"name": name, "version": "1.0.0", "main": "index.js"}).encode()
    entry = tarfile.TarInfo("package/package.json")
    entry.size = len(manifest)
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(entry.tobuf() + manifest.ljust(512, b"\0"))]
    header = bytearray(tarfile.TarInfo("package/0000000").tobuf(tarfile.USTAR_FORMAT))
    total = sum(header) - sum(header[8:15]) - sum(header[148:156]) + 8 * ord(" ")
    for number in range(count):
        digits = b"%07d" % number
        header[8:15] = digits
        header[148:156] = b"%06o\0 " % (total + sum(digits))
        parts.append(packer.compress(bytes(header)))
    return b"".join([*parts, packer.compress(bytes(1024)), packer.flush()])


def integrity(data: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Do not wait for the threads of killed clients when the server closes, because these threads end only
    # with the server.
    block_on_close = False
    registry: Registry

    def handle_error(self, *_: object) -> None:
        """Ignores errors of connections, because some tests disconnect, and some reject the certificate."""

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        context = self.server.registry.context
        # The first byte shows whether the client begins with a TLS handshake. A client that uses this server
        # as a proxy does not.
        if context and self.request.recv(1, socket.MSG_PEEK) == b"\x16":
            self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        # Close the TLS socket here. The server closes only the accepted socket, which the TLS socket has
        # replaced.
        self.request.close()

    def do_CONNECT(self) -> None:
        """Acts as a proxy: every host leads to this server."""
        registry = self.server.registry
        registry.proxied.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        if registry.context:
            self.request = registry.context.wrap_socket(self.connection, server_side=True)
        super().setup()
        self.close_connection = False

    def do_GET(self) -> None:
        registry = self.server.registry
        parts = urlsplit(self.path)
        if parts.netloc:
            registry.proxied.append(parts.netloc)
        name, found, rest = unquote(parts.path).lstrip("/").partition("/-/")
        version = rest.removesuffix(".tgz") if found else None
        registry.requests.append(f"{name}@{version}" if version else name)
        registry.tokens.append(self.headers.get("Authorization"))
        if registry.token and self.headers.get("Authorization") != f"Bearer {registry.token}":
            return self._answer(401, b'{"error":"unauthorized: who are you?"}')
        fault = registry.faults.get(f"{name}/tarball" if version else name, registry.faults.get(name))
        # The faults "lies" and "endless" apply only to tarballs, so the document of the package is sent as
        # usual.
        if fault and (version or fault not in ("lies", "endless")):
            return self._fail(fault, registry.tarball(name, version) if version else b"{}")
        base = f"http://{parts.netloc}/" if parts.netloc else registry.url
        body = registry.tarball(name, version) if version else registry.document(name, base)
        return self._answer(404, b'{"error":"not found"}') if body is None else self._answer(200, body)

    def _fail(self, fault: Fault, body: bytes | None) -> None:
        match fault:
            case "missing":
                self._answer(404, b'{"error":"not found"}')
            case "refused":
                self._answer(403, b'{"error":"forbidden by policy"}')
            case "broken":
                self._answer(500, b"the database at /var/lib/registry is gone")
            case "hangs":
                self.server.registry.stopped.wait()
            case "drips":
                self._drip(itertools.chain([body or b"{}"], itertools.repeat(b" ")), pause=0.05)
            case "lies":
                self._answer(200, pack({"package.json": "{}", "index.js": "// not what was promised"}))
            case "garbage":
                self._answer(200, b"<html>Sign in to the hotel's network</html>")
            case "redirects":
                self.send_response(302)
                self.send_header("Location", self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "endless":
                packer = zlib.compressobj(0, wbits=31)
                block = bytes(1 << 20)
                self._drip(packer.compress(block) for _ in itertools.count())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self, parts: Iterator[bytes], pause: float = 0) -> None:
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        stopped = self.server.registry.stopped
        with contextlib.suppress(OSError):
            for part in parts:
                for start in range(0, len(part), 1 if pause else len(part)):
                    self.wfile.write(part[start : start + (1 if pause else len(part))])
                    if stopped.wait(pause) if pause else stopped.is_set():
                        return

    def log_message(self, *_: object) -> None:
        """Suppresses the default log."""
