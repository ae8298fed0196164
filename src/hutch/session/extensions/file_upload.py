"""Receives the input files of an execution from a client."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from hutch.errors import InvalidExecution
from hutch.session.extensions.messages import FileHeader
from hutch.session.files.model import FileLimits, name_problem


class FileUpload:
    """Announced files, whose contents arrive in parts."""

    def __init__(self, announced: Any, limits: FileLimits) -> None:
        """`announced`: the value of `options.files`. Raises InvalidExecution."""
        if isinstance(announced, list) and len(announced) > limits.max_files:
            raise InvalidExecution(
                "files",
                f"expected at most {limits.max_files} files (setting max_files), got {len(announced)}",
            )
        try:
            self._headers = msgspec.convert(announced, list[FileHeader])
        except msgspec.ValidationError as error:
            raise InvalidExecution("options.files", str(error)) from None
        self.size = sum(header.size for header in self._headers)
        if self.size > limits.max_bytes:
            raise InvalidExecution(
                "files",
                f"expected at most {limits.max_bytes} bytes in all files (setting {limits.setting}),"
                f" got {self.size}",
            )
        self._contents: dict[str, bytearray] = {}
        for header in self._headers:
            if (problem := name_problem(header.name)) is not None:
                raise InvalidExecution("files", problem)
            if header.name in self._contents:
                raise InvalidExecution("files", f"expected different names, got {header.name!r} twice")
            self._contents[header.name] = bytearray()
        self._current = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._skip_complete()

    def add(self, data: bytes) -> bool:
        """Adds a part of the first incomplete file. Returns False if no such part was expected."""
        if self._done.done():
            return False
        header = self._headers[self._current]
        content = self._contents[header.name]
        if not data or len(content) + len(data) > header.size:
            message = f"expected parts of {header.name!r} that have {header.size} bytes together"
            self._done.set_exception(InvalidExecution("files", message))
            self._done.exception()  # asyncio logs an exception that is never read
            return False
        content += data
        self._skip_complete()
        return True

    def _skip_complete(self) -> None:
        while self._current < len(self._headers):
            header = self._headers[self._current]
            if len(self._contents[header.name]) < header.size:
                return
            self._current += 1
        self._done.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Waits until all parts have arrived, but at most this time. Returns True if they have arrived, or if
        one was invalid.
        """
        await asyncio.wait({self._done}, timeout=seconds)
        return self._done.done()

    def contents(self) -> dict[str, bytearray]:
        """Returns the contents by name, after all parts have arrived. Raises InvalidExecution."""
        self._done.result()
        return self._contents
