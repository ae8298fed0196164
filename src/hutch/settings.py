"""Typed settings, loaded from flags, HUTCH_* variables and hutch.toml files, in that order of precedence."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hutch.errors import ConfigError, SettingError
from hutch.text import cut, did_you_mean

if TYPE_CHECKING:
    from msgspec.inspect import Type

    from hutch.config_text import ConfigText

logger = logging.getLogger("hutch")

MIB = 1024 * 1024
HOME = "~/.hutch"
DEFAULT_PORT = 4111

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings with their types and defaults."""

    home: str = HOME
    """Folder for caches, keys and databases."""
    database_url: str | None = None
    """PostgreSQL database to use instead of SQLite in `home`."""
    isolation: Literal["auto", "container", "process"] = "auto"
    """Isolation of guests. `auto` uses the strongest kind that passes the self-test. `container` refuses to
    start with a weaker kind.
    """
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    api_key: str | None = None
    """Key that clients of Execbox, TPMJS and the gateway must send; None for no key. Also read from
    EXECUTOR_API_KEY.
    """

    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may send in `Host`, in addition to `host` and the loopback names."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may connect, such as `https://example.com`."""
    max_connections: Positive = 4_096
    """Maximum open connections of `hutch serve`. At most half of the file descriptors that the process may
    open are used for connections.
    """
    max_connections_per_address: Positive = 1_024
    """Maximum open connections of one address, or of one IPv6 network of 64 bits. Loopback addresses have no
    such limit.
    """
    drain_seconds: Seconds = 30.0
    """Seconds that the server waits for running executions after SIGTERM."""

    # Limits of an execution: the default, and the maximum that a caller may ask for.
    timeout_ms: Positive = 5_000
    max_timeout_ms: Positive = 300_000
    memory_limit_bytes: Positive = 64 * MIB
    max_memory_limit_bytes: Positive = 1024 * MIB
    max_log_lines: Count = 100
    max_log_lines_ceiling: Count = 10_000
    max_log_chars: Count = 64_000
    max_log_chars_ceiling: Count = 4_000_000
    max_code_bytes: Positive = 4 * MIB
    max_result_bytes: Positive = 8 * MIB
    max_line_bytes: Positive = 16 * MIB
    max_pending_bytes: Positive = 64 * MIB
    """Maximum size of the `execute` messages of one Execbox client that wait or run, together."""
    max_calls: Positive = 100_000
    max_outstanding_calls: Positive = 256
    cancel_grace_ms: Positive = 25
    """Milliseconds that a cancelled execution may take to return its logs."""

    # Pool of runner processes.
    quickjs_warm: Count = 1
    """Number of idle runner processes kept ready. They belong to no owner yet."""
    quickjs_processes: Positive = cores()
    """Maximum runner processes of one owner. An owner whose processes are not full gets another process only
    while fewer than this many processes of all owners are busy. While fewer executions than this run, a
    runner polls briefly for its next message before it sleeps.
    """
    quickjs_vms: Positive = 2_048
    """Maximum executions in flight in one runner process."""
    quickjs_process_bytes: Positive = 4_096 * MIB
    """Memory limit of one runner process with all its executions."""
    owners_share: bool = False
    """Lets executions of different owners share a runner process."""
    deno_warm: Count = 2
    """Number of single-use Deno processes kept ready."""
    max_processes: Positive = 20
    """Maximum runner processes of all engines and owners."""
    max_processes_per_owner: Count = 0
    """Maximum runner processes that one owner's executions may occupy; 0 means four fifths of
    `max_processes`. The last fifth is kept for owners whose executions occupy none.
    """
    max_queue: Count = 1_250
    """Maximum executions that wait for a runner."""
    max_queue_per_owner: Count = 0
    """Maximum waiting executions of one owner; 0 means four fifths of `max_queue`. The last fifth is kept for
    owners without a waiting execution.
    """
    queue_seconds: Seconds = 30.0
    """Seconds that an execution waits for a runner before it fails with `Busy`."""
    idle_seconds: Seconds = 300.0
    """Seconds after which an idle runner process ends. The configured number of warm processes stays."""
    recycle_after: Positive = 100_000
    """Number of executions after which a runner process is replaced."""

    # TPMJS: tools in npm packages.
    executor_name: str = "Hutch"
    region: str | None = None
    metadata: dict[str, str] = {}
    """Additional fields in `/info`."""
    tpmjs_string_errors: bool = True
    """Sends `error` as a string to TPMJS clients that send no protocol version. The public web client
    requires this.
    """
    tpmjs_validate: bool = False
    """Refuses parameters that do not match the schema of a TPMJS tool, also if the request does not ask for
    it.
    """
    tool_timeout_ms: Positive = 120_000
    tool_memory_bytes: Positive = 512 * MIB
    request_seconds: Seconds = 180.0
    """Maximum seconds for a request: installation, waiting and execution together."""
    max_body_bytes: Positive = 10 * MIB
    max_tools: Positive = 80
    """Maximum concurrent tool calls, including calls that wait for a process. Further calls are refused as
    busy.
    """
    max_tools_per_caller: Count = 0
    """Maximum concurrent tool calls of one key or, without keys, one address; 0 means four fifths of
    `max_tools`. The last fifth is kept for callers without a call in progress.
    """
    rate_limit: Count = 0
    """Tool calls per minute for each key or, without keys, each address; 0 means no limit."""
    tool_calls_per_process: Positive = 1
    """Successive calls of the same package, version, env and caller that one process may serve."""
    max_spares: Count = 8
    """Maximum number of spares, which are idle processes that have already imported a package."""
    spare_bytes: Positive = 1024 * MIB
    """Maximum memory of all spares together."""
    spare_seconds: Seconds = 300.0
    """Seconds that a spare may stay idle."""
    install_seconds: Seconds = 60.0
    latest_seconds: Seconds = 300.0
    """Seconds for which the resolved version of a range or tag is cached."""
    max_package_bytes: Positive = 512 * MIB
    max_package_files: Positive = 100_000
    """Maximum number of files in a package. Like `max_package_bytes`, it includes all dependencies."""
    offline: bool = False
    """Runs only packages that are already installed."""
    egress: Literal["none", "public", "allowlist"] = "public"
    """Hosts that tools may reach: none, the public internet, or only the entries of `egress_allow`."""
    egress_allow: tuple[str, ...] = ()
    """`host:port` entries that tools may reach even if they are not public. With `allowlist`, tools may reach
    only these entries.
    """
    package_egress: dict[str, str] = {}
    """Stricter policy for single packages: `none`, or a list of hosts separated by spaces."""

    # Requests made by abilities.
    egress_http_hosts: tuple[str, ...] = ()
    """Hosts that abilities may reach over plain http, in addition to `egress_allow`."""
    proxy_url: str | None = None
    """HTTP proxy for the requests of abilities. Also read from PROXY_URL."""
    fetch_seconds: Seconds = 30.0
    max_fetch_bytes: Positive = 8 * MIB
    """Maximum size of a response body after decompression."""
    max_fetch_body_bytes: Positive = 8 * MIB
    """Maximum size of a request body."""
    max_fetch_redirects: Count = 20
    max_fetch_requests: Positive = 50
    """Maximum requests of one run, including redirects."""

    ability_timeout_ms: Positive = 30_000
    """Time limit of a wrapper, including its requests."""
    ability_memory_bytes: Positive = 64 * MIB
    """Memory limit of a wrapper and of a transform."""
    transform_timeout_ms: Positive = 5_000
    max_ability_chars: Positive = 30_000
    """Maximum length of the JSON text of a response body. Longer text is truncated."""
    ability_expire_on: str = "401,403,407"
    """HTTP statuses that mark a credential as expired: `401,403,407`, or a range such as `401-499`."""
    ability_rate_limit: Count = 600
    """Maximum requests to the abilities API per minute for each user's key; 0 means no limit."""
    keep_runs_days: Count = 30
    """Days for which run records are kept; 0 means forever."""

    # Toolscripts.
    mcp_config: tuple[str, ...] = ()
    """MCP configuration files. Default: `.toolscript.json` in the user's home directory and, for commands
    other than servers, in the current directory if it is trusted.
    """
    mcp_eager: bool = True
    """Connects to all MCP servers at the start. Otherwise each server is connected on first use."""
    mcp_pass_through: bool = False
    """Offers every tool of the MCP servers directly in `/mcp`, too."""
    max_mcp_sessions: Positive = 1_000
    """Maximum open sessions of all users' MCP clients together. The operator has as many apart from them."""
    max_mcp_sessions_per_user: Positive = 100
    """Maximum open sessions of one user's MCP clients."""
    approvals: dict[str, str] = {}
    """Approval rules: `allow`, `ask` or `deny` for a server, a `server__tool`, or `*`."""
    script_timeout_ms: Positive = 120_000
    script_memory_bytes: Positive = 256 * MIB
    script_strict: bool = False
    """Whether toolscripts are checked strictly as a whole, and not only where they use tools."""

    # Flows.
    flow_rate_limit: Count = 120
    """Maximum registrations of flows and starts of flow runs per minute for each user's key; 0 means no
    limit.
    """
    max_flows: Positive = 16
    """Maximum concurrent flow runs. Each has its own process. Up to `max_queue` further runs wait."""

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_json: bool = False

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={'***' if value and name in SECRETS else repr(value)}" for name, value in values)
        return f"Settings({', '.join(shown)})"

    @property
    def home_path(self) -> Path:
        return Path(self.home).expanduser()


FILE = "hutch.toml"
# Settings that the hutch.toml of a project may contain: default limits of executions, and the log format.
# None of them changes what guests can reach, what is asked for, or where data is stored.
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
_TABLES = ("metadata", "package_egress", "approvals")
SECRETS = ("api_key", "database_url", "proxy_url")
# HUTCH_DENO and HUTCH_BWRAP name binaries; they are not settings.
_BINARIES = ("deno", "bwrap")

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
    """Like `load_settings`. Also returns the source of each setting that was set: a flag, a variable, or a
    file with the name of the setting.
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
    # A file has typed values; in the environment everything is text.
    _convert({key: value for key, value in in_file.items() if key not in values}, strict=True)
    values = {**in_file, **values}
    if project is not None:
        values = {**values, **_project_overrides(project, values, in_file)}
    settings = _convert(values, strict=False)
    _expand(settings.home, values.get("home", ("", "home"))[1])
    return settings, {key: where for key, (_, where) in values.items()}


def _project_overrides(
    project: Callable[[Path], ConfigText | None],
    values: Mapping[str, _Sourced],
    in_file: Mapping[str, _Sourced],
) -> dict[str, _Sourced]:
    """Returns the settings of the project that flags and environment do not set. `values` includes
    `in_file`.
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
    # Skips this function, _with_new_names, load_with_sources, load_settings and Hutch(), so that the warning
    # names the caller's line.
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
    # Paths are relative to the file. Relative to the current directory, they could name the files of others.
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
    known = (*Settings.__struct_fields__, *_RENAMED, *_BINARIES)
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
        case inspect.DictType():
            return "a table of strings (in a variable: name=value, separated by commas)"
        case _:
            return "a string"


def _suggestion(key: str) -> str:
    near = did_you_mean(key, Settings.__struct_fields__)
    return f" Did you mean {near}?" if near else ""
