"""Answers the calls that a guest makes to `files` and `display`: reads input files and collects output files.

The calls are tool calls of a provider with a reserved name. The host neither records them nor counts them as
tool calls.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import msgspec

from hutch.errors import ToolError
from hutch.session.files.model import (
    File,
    InputFiles,
    check_mime_type,
    extension_of,
    mime_type_of,
    name_problem,
)
from hutch.text import cut

PROVIDER = "hutch:files"
MAX_PIECE_BYTES = 1024 * 1024
MAX_INPUT_BYTES = 2 * MAX_PIECE_BYTES


class _Read(msgspec.Struct, frozen=True):
    name: str
    offset: int
    size: int


class _Write(msgspec.Struct, frozen=True):
    name: str | None
    """None if the host has to choose a name."""
    type: str | None
    offset: int
    size: int
    """Size of the whole file."""
    data: str
    """Base64 of the piece that begins at `offset`."""


class OutputFile(msgspec.Struct):
    """A file that the guest writes. It is complete when it has `size` bytes."""

    name: str
    mime_type: str
    size: int
    data: bytearray


class SavedFiles(msgspec.Struct, frozen=True):
    """Files of a suspended run."""

    inputs: InputFiles
    outputs: list[OutputFile]
    call_count: int

    @property
    def size(self) -> int:
        return self.inputs.size + sum(len(output.data) for output in self.outputs)

    def contents(self) -> list[bytes]:
        """Returns the contents of all files, inputs first."""
        return [file.data for file in self.inputs.files] + [bytes(output.data) for output in self.outputs]

    def with_contents(self, contents: Sequence[bytes]) -> SavedFiles:
        """Returns the same files with other contents, in the order of `contents`."""
        replace, count = msgspec.structs.replace, len(self.inputs.files)
        inputs = [replace(file, data=data) for file, data in zip(self.inputs.files, contents, strict=False)]
        outputs = [
            replace(output, data=bytearray(data))
            for output, data in zip(self.outputs, contents[count:], strict=True)
        ]
        return SavedFiles(replace(self.inputs, files=inputs), outputs, self.call_count)


class FileCalls:
    """Files of one session."""

    def __init__(self, inputs: InputFiles, max_calls: int, saved: SavedFiles | None = None) -> None:
        self._inputs = inputs
        self._max_calls = max_calls
        self._outputs: dict[str, OutputFile] = {}
        self._size = 0
        """Size of the output files when all are complete."""
        self.count = 0
        self.reading = asyncio.Lock()
        if saved is not None:
            # Copy the files and leave `saved` unchanged, because the session may be continued again from it
            # if its runner is lost.
            self._outputs = {each.name: _copy(each) for each in saved.outputs}
            self._size = sum(output.size for output in self._outputs.values())
            self.count = saved.call_count

    def files(self) -> list[File]:
        """Returns the complete output files, in the order of their first write."""
        return [
            File(output.name, output.mime_type, bytes(output.data))
            for output in self._outputs.values()
            if len(output.data) == output.size
        ]

    def saved(self) -> SavedFiles:
        return SavedFiles(self._inputs, list(self._outputs.values()), self.count)

    def call(self, tool: str, input: bytes) -> bytes:
        """Returns the JSON text of the result. Raises ToolError."""
        self.count += 1
        if self.count > self._max_calls:
            raise ToolError(f"files: more than {self._max_calls} calls in one execution")
        if len(input) > MAX_INPUT_BYTES:
            raise ToolError(f"files.{tool}: the input has {len(input)} bytes; the limit is {MAX_INPUT_BYTES}")
        try:
            if tool == "read":
                return self._read(msgspec.json.decode(input, type=_Read))
            return self._write(msgspec.json.decode(input, type=_Write))
        except (ValueError, RecursionError):
            # The message needs no details, because the prelude's functions send valid input unless the guest
            # has changed built-ins.
            raise ToolError(f"files.{tool}: the input is invalid", "validation_error") from None

    def _read(self, read: _Read) -> bytes:
        file = next((each for each in self._inputs.files if each.name == read.name), None)
        if file is None or read.offset < 0:
            shown = cut(repr(read.name), 100)
            message = f"files.read: expected the name of an input file, got {shown}"
            raise ToolError(message, "validation_error")
        end = read.offset + min(max(read.size, 0), MAX_PIECE_BYTES)
        return b'"' + base64.b64encode(file.data[read.offset : end]) + b'"'

    def _write(self, write: _Write) -> bytes:
        piece = base64.b64decode(write.data, validate=True)
        output = self._begin(write, piece) if write.offset == 0 else self._outputs.get(write.name or "")
        if output is None or len(output.data) != write.offset or write.offset + len(piece) > output.size:
            raise ToolError(
                f"files.write: {cut(repr(write.name), 100)} was written twice at the same time."
                " Await the first write."
            )
        output.data += piece
        return msgspec.json.encode(output.name)

    def _begin(self, write: _Write, piece: bytes) -> OutputFile:
        label = "display" if write.name is None else "files.write"
        if write.name is not None and (problem := name_problem(write.name)) is not None:
            raise ToolError(f"{label}: {problem}", "validation_error")
        kind = check_mime_type(write.type) if write.type is not None else mime_type_of(write.name, piece)
        if kind is None:
            shown = cut(repr(write.type), 100)
            raise ToolError(
                f'{label}: type: expected a MIME type such as "image/png", got {shown}', "validation_error"
            )
        name = self._display_name(kind) if write.name is None else write.name
        replaced = self._outputs.get(name)
        limits = self._inputs.limits
        if replaced is None and len(self._outputs) >= limits.max_files:
            raise ToolError(f"{label}: a run can have {limits.max_files} output files (setting max_files)")
        size = self._size - (0 if replaced is None else replaced.size) + write.size
        if write.size < 0 or size > limits.max_bytes:
            raise ToolError(
                f"{label}: the output files would have {size} bytes; the limit is {limits.max_bytes}"
                f" (setting {limits.setting})"
            )
        self._size = size
        output = self._outputs[name] = OutputFile(name, kind, write.size, bytearray())
        return output

    def _display_name(self, mime_type: str) -> str:
        extension = extension_of(mime_type)
        number = 1 + sum(name.startswith("display-") for name in self._outputs)
        while (name := f"display-{number}{extension}") in self._outputs:
            number += 1
        return name


def _copy(output: OutputFile) -> OutputFile:
    return msgspec.structs.replace(output, data=bytearray(output.data))
