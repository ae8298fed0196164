"""`hutch trust`: decides whether the configuration files of a folder are used."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hutch.cli.support import prompts
from hutch.cli.support.console import format_age_of, print_json, print_line, print_note, print_table
from hutch.cli.support.project_files import FILES, ProjectFile, describe_file
from hutch.cli.support.trust import DamagedTrustStore, TrustedFile, TrustStore, is_trusted
from hutch.errors import ConfigError, InvalidInput
from hutch.settings import load_settings
from hutch.settings.config_text import read_config_text
from hutch.text import printable

# Maximum length of the shown text. A longer text would scroll off the screen before the user can read it.
MAX_SHOWN_CHARS = 20_000


def trust_folder(folder: Path, *, yes: bool) -> int:
    """Shows what the files of a folder would do, and trusts them after a confirmation. Returns 1 if the user
    refuses.
    """
    folder = _resolve(folder)
    # Read each file only once, so that the content that is trusted is the content that was shown.
    files = _read_files(folder)
    if not files:
        raise InvalidInput("FOLDER", f"{folder} has none of the files {', '.join(FILES)}.")
    store = TrustStore(load_settings().home_path)
    trusted = _trusted_files(store, folder)
    lines = [line for file in files for line in _describe(file, trusted.get(file.name))]
    if sum(map(len, lines)) > MAX_SHOWN_CHARS:
        raise InvalidInput(
            "FOLDER",
            f"its files do more than can be shown in {MAX_SHOWN_CHARS} characters.",
            remedy="Read them, then name .toolscript.json with --config or HUTCH_MCP_CONFIG.",
        )
    print_line(f"{folder}:")
    for line in lines:
        print_line(line)
    print_line("")
    if all(is_trusted(trusted.get(file.name), file.source) for file in files):
        print_note("these files are trusted already")
        return 0
    if not yes and not _confirm(files):
        print_note("nothing was trusted")
        return 1
    store.add(folder, files)
    change = "it changes" if len(files) == 1 else "they change"
    print_note(f"trusted {', '.join(file.name for file in files)} until {change}")
    return 0


def _confirm(files: list[ProjectFile]) -> bool:
    if not prompts.can_prompt():
        raise InvalidInput(
            "--yes", "there is no terminal to ask at.", remedy="Read the above, then add --yes."
        )
    if any(file.names_programs for file in files):
        print_line("The programs run as you, outside of the sandbox.")
        print_line("Hutch asks again if these files change, but not if the programs change.")
    return prompts.confirm("Trust these files?")


def _resolve(folder: Path) -> Path:
    try:
        resolved = folder.resolve(strict=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput("FOLDER", f"{folder} cannot be used: {reason}.") from None
    if not resolved.is_dir():
        raise InvalidInput("FOLDER", f"{folder} is not a folder.")
    return resolved


def _read_files(folder: Path) -> list[ProjectFile]:
    sources = ((name, read_config_text(folder / name)) for name in FILES)
    return [describe_file(name, source) for name, source in sources if source is not None]


def _trusted_files(store: TrustStore, folder: Path) -> dict[str, TrustedFile]:
    try:
        trusted = store.folders().get(str(folder))
    except DamagedTrustStore as error:
        print_note(str(error))
        return {}
    return {} if trusted is None else trusted.files


def _describe(file: ProjectFile, trusted: TrustedFile | None) -> list[str]:
    lines = ["", f"  {file.name}{'' if file.items else ': nothing'}"]
    known = None if trusted is None or is_trusted(trusted, file.source) else trusted.items
    labels = [f"{printable(item.name)}{_mark(item.name, item.digest, known)}" for item in file.items]
    width = max(map(len, labels), default=0)
    for item, label in zip(file.items, labels, strict=True):
        first, *others = map(printable, item.effects)
        lines.append(f"    {label.ljust(width)}  {first}")
        lines += [f"    {'':{width}}  {other}" for other in others]
    lines += [f"    {name} is gone" for name in known or () if name not in file.digests]
    if file.variables:
        lines.append(f"    asks for the variables {', '.join(file.variables)}")
    return [printable(line) for line in lines]


def _mark(name: str, digest: str, known: dict[str, str] | None) -> str:
    if known is None or known.get(name) == digest:
        return ""
    return " (new)" if name not in known else " (different)"


# --- hutch trust --list, --revoke ---


class TrustSummary(msgspec.Struct, frozen=True, kw_only=True):
    """File in the JSON output of `hutch trust --list`."""

    folder: str
    file: str
    state: str
    """`trusted`, `changed`, or `gone`."""
    trusted_at: str


def list_trusted(*, json: bool) -> int:
    folders = TrustStore(load_settings().home_path).folders()
    rows = [
        TrustSummary(
            folder=folder,
            file=name,
            state=_state(Path(folder) / name, record),
            trusted_at=trusted.trusted_at,
        )
        for folder, trusted in sorted(folders.items())
        for name, record in sorted(trusted.files.items())
    ]
    if json:
        print_json(msgspec.json.encode(rows))
    elif rows:
        print_table(
            ("FOLDER", "FILE", "STATE", "TRUSTED"),
            [(row.folder, row.file, row.state, format_age_of(row.trusted_at)) for row in rows],
        )
    else:
        print_note("no folder is trusted; `hutch trust FOLDER` trusts one")
    return 0


def _state(path: Path, record: TrustedFile) -> str:
    try:
        source = read_config_text(path)
    except ConfigError:
        return "changed"
    if source is None:
        return "gone"
    return "trusted" if is_trusted(record, source) else "changed"


def revoke_trust(folder: Path) -> int:
    # Do not check that the folder exists, because it may have been deleted.
    path = folder.resolve()
    if not TrustStore(load_settings().home_path).remove(path):
        raise InvalidInput("FOLDER", f"{path} is not trusted.", remedy="`hutch trust --list` lists all.")
    print_line(f"{path} is not trusted any more")
    return 0
