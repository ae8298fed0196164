"""Reads the input files of a run, and saves its output files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hutch.cli.support.console import print_note
from hutch.errors import InvalidExecution
from hutch.session.files.model import File


def read_input_files(paths: Sequence[Path], max_bytes: int) -> dict[str, bytes] | None:
    """Returns contents by name, or None without paths. Reads at most one byte more than `max_bytes`, so that
    `Hutch.run` refuses larger files. Raises InvalidExecution.
    """
    contents: dict[str, bytes] = {}
    left = max_bytes + 1
    for path in paths:
        if path.name in contents:
            raise InvalidExecution("--input-file", f"expected different names, got two files {path.name!r}")
        try:
            with path.open("rb") as file:
                contents[path.name] = file.read(left)
        except OSError as error:
            raise InvalidExecution("--input-file", f"{path} cannot be read: {error.strerror}") from None
        left -= len(contents[path.name])
    return contents or None


def save_files(files: Sequence[File], folder: Path, *, force: bool) -> bool:
    """Saves files in a folder, which is created if necessary. Without `force`, existing files stay. Prints
    each problem. Returns True if all files were saved.
    """
    is_complete = True
    for file in files:
        path = folder / file.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if force:
                # Remove the file instead of overwriting it, because it may be a link to a file in another
                # folder.
                path.unlink(missing_ok=True)
            with path.open("xb") as saved:
                saved.write(file.data)
            print_note(f"saved {path} ({describe(file)})")
        except FileExistsError:
            print_note(f"{path} was not saved: it exists; --force replaces it")
            is_complete = False
        except OSError as error:
            print_note(f"{path} was not saved: {error.strerror}")
            is_complete = False
    return is_complete


def describe(file: File) -> str:
    return f"{file.mime_type}, {file.size} bytes"
