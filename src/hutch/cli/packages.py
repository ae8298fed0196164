"""`hutch packages`: what is on the shelf, by hand."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from hutch import home
from hutch import settings as settings_module
from hutch.cli import loop, table
from hutch.errors import HutchError, PackageNotFound, SettingError
from hutch.npm import names
from hutch.npm.shelf import Entry, Pruned, Shelf
from hutch.settings import MIB

T = TypeVar("T")


def list_packages(*, json: bool) -> int:
    """The command's exit code. As JSON, all on one line."""

    async def entries(shelf: Shelf) -> list[Entry]:
        return shelf.list()

    found = _with_shelf(entries)
    if json:
        print(msgspec.json.encode(found).decode())
    elif found:
        _print_table(found)
    else:
        print("hutch: the shelf is empty; `hutch packages add NAME` puts a package on it", file=sys.stderr)
    return 0


def add_packages(packages: Sequence[str]) -> int:
    """Installs each, the latest where no version is given. 1 if any could not be had."""
    specs = [names.parse_argument(text) for text in packages]

    async def add(shelf: Shelf) -> int:
        failures = 0
        for spec in specs:
            progress = Progress(str(spec))
            try:
                package = await shelf.add(spec, progress)
            except PackageNotFound as error:
                failures += 1
                progress.end()
                print(f"hutch: {error}", file=sys.stderr)
            else:
                progress.end()
                print(f"{package.name}@{package.version}  {_size(package.size)}, {package.files} files")
        return failures

    return 1 if _with_shelf(add) else 0


def remove_packages(packages: Sequence[str]) -> int:
    """Removes versions, or ranges of them, or without a version all of a package. 1 if any was not there."""
    specs = [(names.parse_argument(text), "@" in text[1:]) for text in packages]

    async def remove(shelf: Shelf) -> int:
        missing = 0
        for spec, versioned in specs:
            removed = await shelf.remove(spec.name, spec.version if versioned else None)
            for entry in removed:
                print(f"removed {entry.name}@{entry.version}")
            if not removed:
                missing += 1
                wanted = str(spec) if versioned else spec.name
                print(f"hutch: {wanted} is not on the shelf", file=sys.stderr)
        return missing

    return 1 if _with_shelf(remove) else 0


def prune_packages(*, days: float) -> int:
    """Removes what was not used for so many days, and leftovers."""
    if not 0 <= days < float("inf"):
        raise SettingError(f"--days: expected a number of at least 0, got {days:g}.")

    async def prune(shelf: Shelf) -> Pruned:
        return await shelf.prune(days)

    pruned = _with_shelf(prune)
    for entry in pruned.packages:
        print(f"removed {entry.name}@{entry.version}, last used {table.ago(entry.used)}")
    if pruned.leftovers:
        print(f"removed {pruned.leftovers} leftovers")
    print(f"{_size(pruned.freed)} freed")
    return 0


class Progress:
    """How an installation goes, on stderr: in one line of a terminal, else without the counting."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._live = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._live:
            print(f"\r\x1b[K{self._subject}: {text}", end="", file=sys.stderr, flush=True)
        elif not text.startswith("downloading"):
            print(f"hutch: {text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _with_shelf(action: Callable[[Shelf], Awaitable[T]]) -> T:
    async def run() -> T:
        shelf = Shelf(settings_module.load())
        try:
            return await action(shelf)
        finally:
            await shelf.close()

    try:
        return loop.run(run())
    except OSError as error:
        obstacle = home.obstacle(error)
        why = obstacle or f"{error.strerror}: {error.filename}"
        remedy = home.REMEDY if obstacle else None
        raise HutchError(f"The shelf cannot be used: {why}.", remedy=remedy) from None


def _print_table(found: list[Entry]) -> None:
    heads = ("PACKAGE", "VERSION", "SIZE", "FILES", "LAST USED", "ALSO")
    rows = [
        (
            each.name,
            each.version,
            _size(each.size),
            str(each.files),
            table.ago(each.used),
            ", ".join(each.known_as),
        )
        for each in found
    ]
    table.print_table(heads, rows)


def _size(count: int) -> str:
    return f"{count / MIB:.1f} MiB"
