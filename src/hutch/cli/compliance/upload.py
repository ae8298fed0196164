"""Sends a body that may be refused before its end, and hears the refusal all the same.

A server that refuses early and hangs up resets the connection while httpx2 writes, and with it goes the
answer. Here, when sending breaks, what has arrived by then is read.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from contextlib import closing, suppress

import httpx2

from hutch.cli.compliance.answer import Answer
from hutch.cli.compliance.client import Client
from hutch.cli.compliance.outcome import NoAnswer

PIECE_BYTES = 64 * 1024
MOST_BYTES = 1024 * 1024


async def upload(client: Client, path: str, body: bytes, seconds: float, *, chunked: bool) -> Answer:
    """Raises NoAnswer."""
    return await asyncio.to_thread(_upload, client, path, body, seconds, chunked)


def _upload(client: Client, path: str, body: bytes, seconds: float, chunked: bool) -> Answer:
    url = httpx2.URL(client.base + path)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
    headers = {**client.headers(keyed=True), **length, "Content-Type": "application/json"}
    began = time.monotonic()
    try:
        with closing(kind(url.host, url.port, timeout=seconds)) as connection:
            connection.putrequest("POST", url.raw_path.decode())
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            with suppress(OSError):
                _send(connection, body, chunked)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            got = response.read(MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"POST {path}: the connection broke while the body was sent: {error}") from None
    return Answer(f"POST {path}", response.status, found, got, time.monotonic() - began)


def _send(connection: http.client.HTTPConnection, body: bytes, chunked: bool) -> None:
    for start in range(0, len(body), PIECE_BYTES):
        piece = body[start : start + PIECE_BYTES]
        connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        connection.send(b"0\r\n\r\n")
