"""Uses the configuration files of a project if the user trusts them: settings, MCP servers, and the runtime
of flows.

Commands that a person runs use the project in the current directory. Servers use only a project that an
option names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch.errors import ConfigError
from hutch.settings import FILE, Settings, load_settings, load_with_sources

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.source.project import ProjectRuntime
    from hutch.settings.config_text import ConfigText

MCP_FILE = ".toolscript.json"


def current_folder() -> Path | None:
    """Returns the current directory, or None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def load_project_settings(flags: Mapping[str, Any] | None = None, folder: Path | None = None) -> Settings:
    """Loads settings including those of a trusted hutch.toml in `folder`. Without a folder, there is no
    project. Raises SettingError.
    """
    return load_project_settings_with_sources(flags, folder)[0]


def load_project_settings_with_sources(
    flags: Mapping[str, Any] | None = None, folder: Path | None = None
) -> tuple[Settings, dict[str, str]]:
    """Like `load_project_settings`. Also returns where each setting was set."""

    def find(home: Path) -> ConfigText | None:
        if folder is None or _is_same_file(folder / FILE, home / FILE):
            return None
        return _trusted_text(folder, FILE, home)

    return load_with_sources(flags, project=find)


def project_servers(settings: Settings, folder: Path | None) -> Callable[[], ConfigText | None]:
    """Returns a function that returns the content of a trusted .toolscript.json in `folder`."""

    def find() -> ConfigText | None:
        user_home = os.environ.get("HOME")
        if folder is None or (user_home and _is_same_file(folder / MCP_FILE, Path(user_home) / MCP_FILE)):
            return None
        return _trusted_text(folder, MCP_FILE, settings.home_path)

    return find


def files_in_current_folder(settings: Settings) -> list[Path]:
    """Returns hutch.toml and .toolscript.json in the current directory if they exist. Leaves out files that
    are used in any case: the user's own configuration, and files that `mcp_config` names.
    """
    folder = current_folder()
    if folder is None:
        return []
    own_files = [settings.home_path / FILE, *(Path(name).expanduser() for name in settings.mcp_config)]
    if user_home := os.environ.get("HOME"):
        own_files.append(Path(user_home, MCP_FILE))
    candidates = [folder / FILE, folder / MCP_FILE]
    return [
        path
        for path in candidates
        if os.path.lexists(path) and not any(_is_same_file(path, own) for own in own_files)
    ]


def project_runtime(start: Path) -> ProjectRuntime | None:
    """Returns the runtime of the project that contains `start`. Returns None if there is none, or if it is a
    program that the user does not trust. Raises ConfigError if a trusted file is invalid.
    """
    from hutch.protocols.rep.ir.source import project

    file = project.locate(start)
    if file is None:
        return None
    folder = file.parent.parent.parent
    source = _read(folder, str(project.FILE))
    if source is None:
        return None
    try:
        bound = project.parse(source)
        if bound.is_builtin:
            return bound
    except ConfigError:
        bound = None
    if not _check_trust(folder, str(project.FILE), source, load_settings().home_path):
        return None
    return bound or project.parse(source)


def _trusted_text(folder: Path, name: str, home: Path) -> ConfigText | None:
    source = _read(folder, name)
    return source if source is not None and _check_trust(folder, name, source, home) else None


def _read(folder: Path, name: str) -> ConfigText | None:
    path = folder.resolve() / name
    if not os.path.lexists(path):
        return None
    from hutch.cli.support import trust

    return trust.read_file(path)


def _check_trust(folder: Path, name: str, source: ConfigText, home: Path) -> bool:
    """Returns True if the user trusts this content. Otherwise logs one line that names the command to run."""
    from hutch.cli.support import trust

    return trust.check(folder.resolve(), name, source, home)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
