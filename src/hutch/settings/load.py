"""Loads settings from flags, HUTCH_* variables and hutch.toml files, in that order of precedence."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import ConfigError, SettingError
from hutch.settings.model import HOME, SECRETS, Settings
from hutch.text import cut, did_you_mean

if TYPE_CHECKING:
    from msgspec.inspect import Type

    from hutch.settings.config_text import ConfigText

logger = logging.getLogger("hutch")

FILE = "hutch.toml"
# Settings that the hutch.toml of a project may contain: default limits of executions, and the log format.
# None of them changes what guests can reach, which approvals are asked for, or where data is stored.
PROJECT_SETTINGS = (
    "timeout_ms",
    "memory_limit_bytes",
    "max_log_lines",
    "max_log_chars",
    "tool_timeout_ms",
    "tool_memory_bytes",
    "ability_timeout_ms",
    "ability_memory_bytes",
    "transform_timeout_ms",
    "max_ability_chars",
    "script_timeout_ms",
    "script_memory_bytes",
    "log_level",
    "log_json",
)
_ALIASES = {"EXECUTOR_API_KEY": "api_key", "PROXY_URL": "proxy_url"}
# Old names of settings, accepted with a warning. Remove these in 0.3.
_RENAMED = {
    "most_timeout_ms": "max_timeout_ms",
    "most_memory_limit_bytes": "max_memory_limit_bytes",
    "most_log_lines": "max_log_lines_ceiling",
    "most_log_chars": "max_log_chars_ceiling",
    "fetch_bytes": "max_fetch_bytes",
    "fetch_body_bytes": "max_fetch_body_bytes",
    "fetch_redirects": "max_fetch_redirects",
    "fetch_requests": "max_fetch_requests",
    "ability_max_chars": "max_ability_chars",
}
_LISTS = ("allowed_hosts", "allowed_origins", "egress_allow", "egress_http_hosts", "mcp_config")
_TABLES = ("metadata", "package_egress", "approvals", "record_protocols", "record_keys", "worker_places")
# HUTCH_DENO and HUTCH_BWRAP name binaries; they are not settings.
_BINARIES = ("deno", "bwrap")
# HUTCH_* variables that other modules read.
_OTHER_VARIABLES = ("master_key",)

# A value and the place where it was set. Error messages name the place.
_Sourced = tuple[Any, str]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    project: Callable[[Path], ConfigText | None] | None = None,
) -> Settings:
    """Loads settings from flags, the environment, `project` and `file`, in that order of precedence.

    `file` defaults to hutch.toml in `home`. `project` gets the path of `home` and returns the hutch.toml of a
    trusted project, which may only contain PROJECT_SETTINGS. Nothing is read from the current directory.
    Raises SettingError, which names the source, the setting and the expected value.
    """
    return load_with_sources(flags, environ=environ, file=file, project=project)[0]


def load_with_sources(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    project: Callable[[Path], ConfigText | None] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """Like `load_settings`. Also returns where each setting was set: the name of the flag, the name of the
    variable, or the file and the setting's name in it. Settings with their default value are left out.
    """
    environ = os.environ if environ is None else environ
    sourced_flags = {key: (value, key) for key, value in (flags or {}).items() if value is not None}
    values = _with_new_names(sourced_flags, lambda key: key, _warn_caller)
    for key, sourced in _from_environ(environ).items():
        values.setdefault(key, sourced)
    _warn_of_typos(environ)
    path = file or _find_file(_expand(*values.get("home", (HOME, "home"))))
    in_file = {} if path is None else _from_file(path)
    for named_values in (values, in_file):
        _check_names(named_values)
    # Check the types of the file's values strictly. Below, text is converted too, because all values from the
    # environment are text.
    _convert({key: value for key, value in in_file.items() if key not in values}, strict=True)
    values = {**in_file, **values}
    if project is not None:
        values = {**values, **_project_overrides(project, values, in_file)}
    settings = _convert(values, strict=False)
    home, where = _expand(settings.home, values.get("home", ("", "home"))[1]), _variable("home")
    if values.get("home", ("", ""))[1] == where:
        _check_parent(home, where)
    return settings, {key: where for key, (_, where) in values.items()}


def _project_overrides(
    project: Callable[[Path], ConfigText | None],
    values: Mapping[str, _Sourced],
    in_file: Mapping[str, _Sourced],
) -> dict[str, _Sourced]:
    """Returns the project's settings, except those that a flag or a variable sets. `values` are the settings
    from all other sources, including `in_file`, which has lower precedence than the project.
    """
    text = project(_expand(*values.get("home", (HOME, "home"))))
    if text is None:
        return {}
    overrides = {
        key: sourced
        for key, sourced in _from_project(text).items()
        if key not in values or values[key] is in_file.get(key)
    }
    _convert(overrides, strict=True)
    return overrides


def project_values(project: ConfigText) -> dict[str, Any]:
    """Returns the settings in a project's hutch.toml. Raises SettingError if one is invalid or forbidden."""
    values = _from_project(project)
    _convert(values, strict=True)
    return {key: value for key, (value, _) in values.items()}


def _check_names(values: Mapping[str, _Sourced]) -> None:
    for key, (_, where) in values.items():
        if key not in Settings.__struct_fields__:
            raise SettingError(f"{cut(where, 300)}: there is no such setting.{_suggestion(key)}")


def _with_new_names(
    values: Mapping[str, _Sourced], name_of: Callable[[str], str], warn: Callable[[str], None]
) -> dict[str, _Sourced]:
    """Replaces the old names of settings from one source. `name_of` returns the spelling of a setting in that
    source.

    A source that has the old and the new name raises SettingError. Between sources, the usual precedence
    applies.
    """
    renamed: dict[str, _Sourced] = {}
    for key, (value, where) in values.items():
        new = _RENAMED.get(key, key)
        if new != key:
            if new in values:
                raise SettingError(
                    f"{where}: this is the old name of {name_of(new)}, which is also set. Remove the old one."
                )
            warn(f"{where}: this setting is now {name_of(new)}; the old name will stop working in 0.3.")
        renamed[new] = (value, where)
    return renamed


def _warn_caller(message: str) -> None:
    # The stack level skips this function, _with_new_names, load_with_sources, load_settings and Hutch(), so
    # that the warning names the line that calls Hutch().
    warnings.warn(message, DeprecationWarning, stacklevel=6)


# Settings that processes started by the server do not need.
_SERVER_ONLY = (
    "api_key",
    "host",
    "port",
    "allowed_hosts",
    "allowed_origins",
    "max_connections",
    "max_connections_per_address",
    "metadata",
    "executor_name",
    "region",
)


def as_environ(settings: Settings) -> dict[str, str]:
    """Returns environment variables that give a child process the same settings, without those in
    _SERVER_ONLY.
    """
    variables: dict[str, str] = {}
    for key in settings.__struct_fields__:
        value = getattr(settings, key)
        if key in _SERVER_ONLY or value in (None, (), {}):
            continue
        if key in _TABLES:
            text = ",".join(f"{name}={item}" for name, item in value.items())
        elif key in _LISTS:
            text = ",".join(value)
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
        variables[_variable(key)] = text
    return variables


def _expand(home: Any, where: str) -> Path:
    """Expands `~`. Does not check that the directory can be written."""
    try:
        return Path(home).expanduser()
    except (TypeError, RuntimeError) as error:
        raise SettingError(f"{where}: expected the path of a directory, got {home!r}: {error}") from None


def _check_parent(home: Path, where: str) -> None:
    """Refuses a path whose parent does not exist. Such a path is probably mistyped, and Hutch would create
    it.
    """
    try:
        exists = home.absolute().parent.exists()
    except OSError:
        return
    if not exists:
        parent = home.absolute().parent
        raise SettingError(f"{where}: {home} cannot be created, because {parent} does not exist. Create it.")


def _find_file(home: Path) -> Path | None:
    # If `home` cannot be read, there is no settings file.
    with suppress(OSError):
        if (home / FILE).is_file():
            return home / FILE
    return None


def _from_file(path: Path) -> dict[str, _Sourced]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"{path}: cannot be read: {reason}") from None
    values = _from_toml(path, text)
    # Resolve paths relative to the file. Relative to the current directory, a path could lead to a file that
    # another user wrote.
    for key in ("home", "mcp_config"):
        if key in values:
            value, where = values[key]
            values[key] = (_relative_to(path.parent, value), where)
    return values


def _relative_to(folder: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_relative_to(folder, item) for item in value]
    if not isinstance(value, str) or value.startswith("~"):
        return value
    return str(folder / value)


def _from_project(project: ConfigText) -> dict[str, _Sourced]:
    try:
        text = project.text
    except ConfigError as error:
        raise SettingError(str(error)) from None
    values = _from_toml(project.path, text)
    _check_names(values)
    for key, (_, where) in values.items():
        if key not in PROJECT_SETTINGS:
            raise SettingError(
                f"{where}: the file of a project cannot set this.",
                remedy=f"Set it in hutch.toml in HUTCH_HOME, or as {_variable(key)}.",
            )
    return values


def _from_toml(path: Path, text: str) -> dict[str, _Sourced]:
    import tomllib  # imported here, because few installations have a settings file

    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingError(f"{path}: cannot be read: {error}") from None
    values = {key: (value, f"{path}: {key}") for key, value in table.items()}
    return _with_new_names(values, lambda key: key, logger.warning)


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Sourced]:
    """Returns each setting with the name of its variable. Empty variables count as not set."""
    names = {_variable(key): key for key in (*Settings.__struct_fields__, *_RENAMED)}
    values: dict[str, _Sourced] = {}
    # HUTCH_ names come first because they take precedence over aliases.
    for name, key in [*names.items(), *_ALIASES.items()]:
        text = environ.get(name, "")
        if text and key not in values:
            values[key] = (_read(key, text), name)
    return _with_new_names(values, _variable, logger.warning)


def _variable(key: str) -> str:
    return f"HUTCH_{key.upper()}"


def _read(key: str, text: str) -> Any:
    if key in _TABLES:
        return _table(text)
    return _items(text) if key in _LISTS else text


def _table(text: str) -> Any:
    """Parses `a=b,c=d`. Other text is returned unchanged, so that the type check refuses it."""
    pairs = [item.partition("=") for item in _items(text)]
    return {key.strip(): value.strip() for key, _, value in pairs} if all(p[1] for p in pairs) else text


def _warn_of_typos(environ: Mapping[str, str]) -> None:
    """Warns about HUTCH_* variables that look like a misspelled setting. This is not an error, because
    another program may use the same prefix.
    """
    known = (*Settings.__struct_fields__, *_RENAMED, *_BINARIES, *_OTHER_VARIABLES)
    for name in environ:
        key = name.removeprefix("HUTCH_").lower()
        if name.startswith("HUTCH_") and key not in known:
            near = did_you_mean(key, (*Settings.__struct_fields__, *_BINARIES))
            if near:
                logger.warning("%s: there is no such setting. Did you mean %s?", name, _variable(near))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


# --- errors ---


def _convert(values: Mapping[str, _Sourced], *, strict: bool) -> Settings:
    try:
        return msgspec.convert({key: value for key, (value, _) in values.items()}, Settings, strict=strict)
    except msgspec.ValidationError as error:
        raise SettingError(_explain(str(error), values)) from None


def _explain(message: str, values: Mapping[str, _Sourced]) -> str:
    """Rewrites msgspec's "Expected … - at `$.port`" to name the source, the value and the expected type."""
    _, _, path = message.partition(" - at `$.")
    key = path.rstrip("`").partition("[")[0]
    if key not in values:
        return message
    value, where = values[key]
    got = "something else" if key in SECRETS else cut(repr(value), 200)
    return f"{where}: expected {_expected(key)}, got {got}."


def _expected(key: str) -> str:
    from msgspec.inspect import StructType, type_info

    info = type_info(Settings)
    assert isinstance(info, StructType)
    return _describe(next(field.type for field in info.fields if field.name == key))


def _describe(expected: Type) -> str:
    from msgspec import inspect

    match expected:
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=minimum, le=maximum) | inspect.FloatType(ge=minimum, le=maximum):
            noun = "an integer" if isinstance(expected, inspect.IntType) else "a number"
            if maximum is None:
                return f"{noun} of at least {minimum:g}"
            return f"{noun} from {minimum} to {maximum}"
        case inspect.VarTupleType():
            return "a list of strings"
        case inspect.DictType(value_type=value):
            noun = "integers" if isinstance(value, inspect.IntType) else "strings"
            return f"a table of {noun} (in a variable: name=value, separated by commas)"
        case _:
            return "a string"


def _suggestion(key: str) -> str:
    near = did_you_mean(key, Settings.__struct_fields__)
    return f" Did you mean {near}?" if near else ""
