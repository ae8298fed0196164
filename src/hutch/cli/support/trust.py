"""Stores which files the user trusts. A record has the path of the folder and the hash of the file's content.

The path of the folder is part of a record, because the same configuration can name other programs in another
folder.
"""

from __future__ import annotations

import hmac
import logging
import shlex
from pathlib import Path

import msgspec

from hutch.cli.support.project_files import ProjectFile, describe_file
from hutch.errors import ConfigError, HutchError, InvalidInput, SettingError, VaultError
from hutch.settings.config_text import ConfigText, read_config_text
from hutch.text import is_storable_text, now_rfc3339
from hutch.vault import private_files

logger = logging.getLogger("hutch.trust")

FILE = "trust.json"
_MAX_NAMED_CHANGES = 3


class TrustedFile(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    items: dict[str, str]
    """Hash of each item, by name, to tell later what has changed. The content itself is not stored."""


class TrustedFolder(msgspec.Struct, frozen=True, kw_only=True):
    trusted_at: str
    files: dict[str, TrustedFile]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    folders: dict[str, TrustedFolder]


class DamagedTrustStore(HutchError):
    """The list of trusted folders is damaged."""


class TrustStore:
    """The trusted folders, in a private file in `home`."""

    def __init__(self, home: Path) -> None:
        self.file = home / FILE

    def folders(self) -> dict[str, TrustedFolder]:
        """Returns the trusted folders by path. Raises DamagedTrustStore and VaultError."""
        data = private_files.read(self.file)
        if data is None:
            return {}
        try:
            document = msgspec.json.decode(data, type=_Document)
        except (msgspec.DecodeError, RecursionError):
            document = None
        if document is None or document.version != 1:
            raise DamagedTrustStore(
                f"{self.file} is damaged, so no folder is trusted.",
                remedy="`hutch trust FOLDER` replaces it.",
            )
        return document.folders

    def find(self, folder: Path, name: str) -> TrustedFile | None:
        """Returns the record of a file, or None if it was never trusted. Raises like `folders`."""
        trusted = self.folders().get(str(folder))
        return None if trusted is None else trusted.files.get(name)

    def add(self, folder: Path, files: list[ProjectFile]) -> None:
        """Trusts these files of the folder. Other files of the folder are no longer trusted. Raises
        VaultError and InvalidInput.
        """
        if not is_storable_text(str(folder)):
            raise InvalidInput("FOLDER", "expected a path in UTF-8.")
        trusted = {file.name: TrustedFile(sha256=file.source.digest, items=file.digests) for file in files}
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise VaultError(f"{self.file.parent}: cannot be created: {error.strerror}.") from None
        with private_files.locked(self.file.parent):
            try:
                folders = self.folders()
            except DamagedTrustStore:
                folders = {}
            folders[str(folder)] = TrustedFolder(trusted_at=now_rfc3339(), files=trusted)
            self._write(folders)

    def remove(self, folder: Path) -> bool:
        """Returns False if the folder was not trusted. Raises DamagedTrustStore and VaultError."""
        if not self.file.exists():
            return False
        with private_files.locked(self.file.parent):
            folders = self.folders()
            if folders.pop(str(folder), None) is None:
                return False
            self._write(folders)
            return True

    def _write(self, folders: dict[str, TrustedFolder]) -> None:
        document = _Document(version=1, folders=folders)
        private_files.write(self.file, msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def is_trusted(record: TrustedFile | None, source: ConfigText) -> bool:
    return record is not None and hmac.compare_digest(record.sha256, source.digest)


def read_file(path: Path) -> ConfigText | None:
    """Reads a file of a project. If that fails, logs it and returns None."""
    try:
        return read_config_text(path)
    except ConfigError as error:
        logger.warning("%s It is not used.", error)
        return None


def check(folder: Path, name: str, source: ConfigText, home: Path) -> bool:
    """Returns True if the user trusts this content of a file. Otherwise logs one line that names the command
    to run.
    """
    try:
        record = TrustStore(home).find(folder, name)
    except HutchError as error:
        # If the list of trusted files cannot be read, no file is trusted.
        logger.warning("%s", error)
        record = None
    if is_trusted(record, source):
        return True
    logger.warning("%s", describe_trust(folder, name, source, record))
    return False


def describe_trust(folder: Path, name: str, source: ConfigText, record: TrustedFile | None) -> str:
    """Says in one line whether a file is used, or why not and what to do."""
    if is_trusted(record, source):
        return f"{name} is trusted"
    command = f"`hutch trust {shlex.quote(str(folder))}`"
    if record is None:
        return f"{name} is not used, because you have not trusted it; {command} shows what it would do"
    changes = f"it has changed since you trusted it: {_describe_changes(name, source, record)}"
    return f"{name} is not used, because {changes}; {command} shows what it would do"


def _describe_changes(name: str, source: ConfigText, record: TrustedFile) -> str:
    try:
        now = describe_file(name, source).digests
    except (ConfigError, SettingError):
        return "it is invalid now"
    changes = [
        *(f"{item} is new" for item in now if item not in record.items),
        *(f"{item} is different" for item in now if now[item] != record.items.get(item, now[item])),
        *(f"{item} is gone" for item in record.items if item not in now),
    ]
    if not changes:
        return "only its format"
    more = len(changes) - _MAX_NAMED_CHANGES
    return ", ".join(changes[:_MAX_NAMED_CHANGES]) + (f", and {more} more changes" if more > 0 else "")
