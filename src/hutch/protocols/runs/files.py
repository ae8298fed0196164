"""Serves recorded files of runs. Their names, types and contents come from guests and are not trusted."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from hutch.http.errors import ApiError

SHOWN_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"})
"""Types that a page may show as images. Other files are only downloaded."""
# With these headers, a browser that opens the file directly runs no code in it, such as the scripts of an SVG
# image.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, no-store",
}


def file_response(files: Iterable[Mapping[str, Any]], name: str) -> Response:
    """Returns the content of a recorded file. Raises ApiError if it was not recorded."""
    file = next((file for file in files if file["name"] == name), None)
    if file is None:
        message = f'This run has no recorded file {name[:200]!r}: files are recorded with `record = "full"`'
        raise ApiError("not_found", message)
    if file.get("data") is None:
        message = f"The file {name!r} was too long to be recorded. See the setting max_record_bytes"
        raise ApiError("not_found", message)
    media_type = file["mime_type"] if file["mime_type"] in SHOWN_TYPES else "application/octet-stream"
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    headers = {**_HEADERS, "Content-Disposition": disposition}
    return Response(base64.b64decode(file["data"]), headers=headers, media_type=media_type)
