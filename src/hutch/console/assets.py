"""Serves the files of the web console, compressed and with a strict content security policy."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from hutch.http.responses import error_response

DIST = Path(__file__).parent / "dist"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.(js|css|svg)")
# Bundled chunks have a digest in their names, so their contents never change.
_CHUNK = re.compile(r".+-[A-Z0-9]{8}\.js")
# Scripts come only from this server. Inline styles are allowed, because scripts of the editor and the charts
# set them.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
        " media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Asset(NamedTuple):
    content: bytes
    compressed: bytes
    etag: str
    media_type: str


@lru_cache(maxsize=100)
def _load(name: str) -> _Asset | None:
    path = DIST / name
    try:
        content = path.read_bytes()
    except OSError:
        return None
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _Asset(content, gzip.compress(content, 9, mtime=0), etag, _MEDIA_TYPES[path.suffix])


def page_response(request: Request, name: str = "index.html") -> Response:
    return _response(request, name)


def asset_response(request: Request, name: str) -> Response:
    return _response(request, name if _NAME.fullmatch(name) else "")


def _response(request: Request, name: str) -> Response:
    asset = _load(name) if name else None
    if asset is None:
        if name.endswith(".html"):
            return error_response(
                404, "The web console was not built. In a checkout, run `make install`, then start again."
            )
        return error_response(404, f"There is nothing at {request.url.path}")
    headers = {
        **SECURITY_HEADERS,
        "Cache-Control": "public, max-age=31536000, immutable" if _CHUNK.fullmatch(name) else "no-cache",
        "ETag": asset.etag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        content = asset.compressed
    return Response(content, headers=headers, media_type=asset.media_type)
