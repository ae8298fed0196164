"""A minimal HTTP client with one connection, so that the client itself is not measured."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec


class Client:
    """Client for a local server that sends `Content-Length`."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self._port = port
        all_headers = {"host": f"127.0.0.1:{port}", "content-type": "application/json", **(headers or {})}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the response. Raises RuntimeError unless it reports success."""
        data = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\n{self._headers}content-length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        response_head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in response_head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        response: dict[str, Any] = msgspec.json.decode(await self._reader.readexactly(length))
        if response.get("success", response.get("ok")) is not True:
            raise RuntimeError(f"{path} failed: {response}")
        return response

    def close(self) -> None:
        self._writer.close()
