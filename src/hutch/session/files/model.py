"""Files of a run: their names, MIME types and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import InvalidExecution
from hutch.text import cut

if TYPE_CHECKING:
    from mimetypes import MimeTypes

MAX_NAME_BYTES = 200
BINARY_TYPE = "application/octet-stream"
_TOKEN = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_MIME_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}")
# Types that `mimetypes` lacks in some versions of Python.
_MORE_TYPES = {
    ".geojson": "application/geo+json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".ts": "text/typescript",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_COMPRESSED_TYPES = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
}
# First bytes of the images that models can see.
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class File(msgspec.Struct, frozen=True):
    name: str
    mime_type: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def text(self) -> str | None:
        """Content of a text file. None if the content is not UTF-8."""
        kind, _, subtype = self.mime_type.partition("/")
        if kind != "text" and not subtype.endswith(("json", "jsonl", "xml", "yaml", "javascript")):
            return None
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return None

    def __repr__(self) -> str:
        return f"File(name={self.name!r}, mime_type={self.mime_type!r}, size={self.size})"


class FileLimits(msgspec.Struct, frozen=True):
    """Limits of the input files of a run, and of its output files."""

    max_files: int
    max_bytes: int
    """Maximum size of all files together."""
    setting: str = "max_file_bytes"
    """Setting that determines `max_bytes`."""


class InputFiles(msgspec.Struct, frozen=True):
    """Input files of a run, possibly none, and the limits of its output files."""

    files: list[File]
    limits: FileLimits

    def listing(self) -> bytes:
        """Returns the JSON text of the names, sizes and types."""
        if not self.files:
            return b"[]"
        return msgspec.json.encode(
            [{"name": file.name, "size": file.size, "type": file.mime_type} for file in self.files]
        )

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def input_files(files: object, limits: FileLimits) -> InputFiles:
    """Checks files and their names. Contents are bytes or text. Raises InvalidExecution."""
    if not isinstance(files, Mapping):
        raise InvalidExecution("files", f"expected names with contents, got {type(files).__name__}")
    if len(files) > limits.max_files:
        raise InvalidExecution(
            "files", f"expected at most {limits.max_files} files (setting max_files), got {len(files)}"
        )
    checked: list[File] = []
    size = 0
    for name, content in files.items():
        if (problem := name_problem(name)) is not None:
            raise InvalidExecution("files", problem)
        data = _content(name, content)
        size += len(data)
        if size > limits.max_bytes:
            raise InvalidExecution(
                "files",
                f"expected at most {limits.max_bytes} bytes in all files (setting {limits.setting})",
            )
        checked.append(File(name, mime_type_of(name, data), data))
    return InputFiles(checked, limits)


def _content(name: str, content: Any) -> bytes:
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError:
            detail = "expected text that can be encoded as UTF-8, got half of a surrogate pair"
            raise InvalidExecution(f"files.{name}", detail) from None
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise InvalidExecution(f"files.{name}", f"expected bytes or text, got {type(content).__name__}")


def name_problem(name: object) -> str | None:
    """Returns the problem of a file name, or None. A file with a valid name cannot be saved outside of its
    folder.
    """
    if not isinstance(name, str):
        return f"expected names that are text, got {cut(repr(name), 100)}"
    is_plain = name.isprintable() and not name.startswith((".", " ")) and not name.endswith((".", " "))
    if not is_plain or not name or any(char in name for char in '/\\:*?"<>|') or _size(name) > MAX_NAME_BYTES:
        return (
            f"expected a plain file name of at most {MAX_NAME_BYTES} bytes, without slashes, a leading dot"
            f' or any of \\:*?"<>|, got {cut(repr(name), 100)}'
        )
    return None


def _size(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))


def check_mime_type(text: str) -> str | None:
    """Returns the type in lower case, or None if it is invalid."""
    return text.lower() if _MIME_TYPE.fullmatch(text) else None


def mime_type_of(name: str | None, data: bytes) -> str:
    """Returns the type that belongs to the extension of the name. Without a name, detects images by their
    first bytes.
    """
    guessed, compression = (None, None) if name is None else _types().guess_type(name, strict=False)
    if compression is not None:
        return _COMPRESSED_TYPES.get(compression, BINARY_TYPE)
    return guessed or image_type_of(data) or BINARY_TYPE


def image_type_of(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)


def extension_of(mime_type: str) -> str:
    """Returns the usual extension of a type with its dot, or an empty text."""
    return _types().guess_extension(mime_type, strict=False) or ""


@cache
def _types() -> MimeTypes:
    from mimetypes import MimeTypes

    # Do not read the operating system's lists of types, so that the types are the same everywhere.
    types = MimeTypes(filenames=())
    for extension, kind in _MORE_TYPES.items():
        types.add_type(kind, extension)
    return types
