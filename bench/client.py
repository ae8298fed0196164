"""A client that is not what is measured: one kept connection, and as little as does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec


class Client:
    """Of a server on this machine that says how long its answers are."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self._port = port
        given = {"host": f"127.0.0.1:{port}", "content-type": "application/json", **(headers or {})}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, which has to tell of a success."""
        data = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\n{self._headers}content-length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        told = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in told.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        answer: dict[str, Any] = msgspec.json.decode(await self._reader.readexactly(length))
        if answer.get("success") is not True:
            raise RuntimeError(f"{path} failed: {answer}")
        return answer

    def close(self) -> None:
        self._writer.close()
