"""One typed Settings: flags beat HUTCH_* variables, which beat hutch.toml, which beats the defaults."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hutch.errors import SettingError

if TYPE_CHECKING:
    from msgspec.inspect import Type

logger = logging.getLogger("hutch")

MIB = 1024 * 1024
HOME = "~/.hutch"
DEFAULT_PORT = 4111

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that an operator can choose."""

    home: str = HOME
    """State: caches, keys, databases."""
    database_url: str | None = None
    """A PostgreSQL database to keep things in, rather than SQLite in the home."""
    isolation: Literal["auto", "container", "process"] = "auto"
    """`auto` takes the strongest that the self-test proves; `container` refuses to start on less."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    api_key: str | None = None
    """Guards Execbox, TPMJS and the gateway. Also EXECUTOR_API_KEY."""

    allowed_hosts: tuple[str, ...] = ()
    """Names by which this server is reached, beside loopback's when it listens there."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may connect, such as `https://example.com`."""
    drain_seconds: Seconds = 30.0
    """How long SIGTERM waits for running executions."""

    # What an execution gets when it does not say, and the most that it may ask for.
    timeout_ms: Positive = 5_000
    most_timeout_ms: Positive = 300_000
    memory_limit_bytes: Positive = 64 * MIB
    most_memory_limit_bytes: Positive = 1024 * MIB
    max_log_lines: Count = 100
    most_log_lines: Count = 10_000
    max_log_chars: Count = 64_000
    most_log_chars: Count = 4_000_000
    max_code_bytes: Positive = 4 * MIB
    max_result_bytes: Positive = 8 * MIB
    max_line_bytes: Positive = 16 * MIB
    max_calls: Positive = 100_000
    max_outstanding_calls: Positive = 256
    cancel_grace_ms: Positive = 25
    """How long a cancelled execution may take to hand in its logs, before it ends without them."""

    # The pool.
    quickjs_warm: Count = 1
    """Runner processes without an owner kept ready."""
    quickjs_processes: Positive = cores()
    """The most runner processes of one owner; none gets a second one while so many are busy, whoever's.
    While fewer executions run, and a core is free, a runner watches for an answer before it sleeps."""
    quickjs_vms: Positive = 2_048
    """The most executions in flight in one runner process."""
    quickjs_process_bytes: Positive = 4_096 * MIB
    """The memory of one runner process with all its executions."""
    owners_share: bool = False
    """Whether executions of different owners may be in one runner process."""
    deno_warm: Count = 2
    """Single-use Deno processes kept ready."""
    max_processes: Positive = 16
    """The most runner processes of all engines and owners at once."""
    max_queue: Count = 1_000
    queue_seconds: Seconds = 30.0
    """How long an execution waits for a place before it is told to come back."""
    idle_seconds: Seconds = 300.0
    """How long a runner process may idle beyond the warm ones."""
    recycle_after: Positive = 100_000
    """Executions after which a runner process is replaced."""

    # npm packages and the tools in them.
    executor_name: str = "Hutch"
    region: str | None = None
    metadata: dict[str, str] = {}
    """Whatever else `/info` is to say of this executor."""
    tpmjs_string_errors: bool = False
    """Whether TPMJS clients that name no version get `error` as a string, which one public client reads."""
    tool_timeout_ms: Positive = 120_000
    tool_memory_bytes: Positive = 512 * MIB
    request_seconds: Seconds = 180.0
    """The most that a request takes: installation, waiting and execution."""
    max_body_bytes: Positive = 10 * MIB
    max_tools: Positive = 64
    """Tool calls at once, those that wait for a process included; who comes then is told to come back."""
    rate_limit: Count = 0
    """Tool calls a minute of one key or, without keys, of one address; 0 is without a limit."""
    tool_calls_per_process: Positive = 1
    """Calls of the same package, version, env and caller that one process may serve, one after the other."""
    max_spares: Count = 8
    """Processes that wait with a package imported already."""
    spare_bytes: Positive = 1024 * MIB
    """Their memory, together."""
    spare_seconds: Seconds = 300.0
    """How long each may wait."""
    install_seconds: Seconds = 60.0
    latest_seconds: Seconds = 300.0
    """For how long what a range or tag resolved to is believed."""
    max_package_bytes: Positive = 512 * MIB
    max_package_files: Positive = 100_000
    """Both of a package with everything that it depends on."""
    offline: bool = False
    """Whether only what is on the shelf may be run."""
    egress: Literal["none", "public", "allowlist"] = "public"
    """What tools may reach: nothing, the public internet, or `egress_allow` alone."""
    egress_allow: tuple[str, ...] = ()
    """`host:port` that may be reached although they are not public, or, with `allowlist`, at all."""
    package_egress: dict[str, str] = {}
    """Narrower for a package: `none`, or its hosts, separated by spaces."""

    # What abilities fetch.
    egress_http_hosts: tuple[str, ...] = ()
    """Hosts that abilities may ask over http, besides those that `egress_allow` names."""
    proxy_url: str | None = None
    """An HTTP proxy that abilities' requests go through. Also PROXY_URL."""
    fetch_seconds: Seconds = 30.0
    fetch_bytes: Positive = 8 * MIB
    """An answer's body, decompressed."""
    fetch_body_bytes: Positive = 8 * MIB
    """A request's body."""
    fetch_redirects: Count = 20
    fetch_requests: Positive = 50
    """Requests of one run, redirects included."""

    ability_timeout_ms: Positive = 30_000
    """A wrapper, with all that it fetches."""
    ability_memory_bytes: Positive = 64 * MIB
    """A wrapper, and a transform."""
    transform_timeout_ms: Positive = 5_000
    ability_max_chars: Positive = 30_000
    """The JSON text of a body; of a longer one the beginning is shown."""
    ability_expire_on: str = "401,403,407"
    """Statuses by which a service refuses a credential: `401,403,407`, or a range such as `401-499`."""
    ability_rate_limit: Count = 600
    """Requests a minute of one user's key to the Abilities door; 0 is without a limit."""
    keep_runs_days: Count = 30
    """How long a server keeps the records of runs; 0 is for ever."""

    # Toolscripts.
    mcp_config: tuple[str, ...] = ()
    """Files that say which MCP servers there are; without any, `.toolscript.json` of the home and here."""
    mcp_eager: bool = True
    """Whether a server connects to all of them when it starts, rather than to each when it is needed."""
    mcp_pass_through: bool = False
    """Whether `/mcp` offers every tool of theirs besides those for code."""
    approvals: dict[str, str] = {}
    """`allow`, `ask` or `deny` by server, by `server__tool`, or for `*`."""
    script_timeout_ms: Positive = 120_000
    script_memory_bytes: Positive = 256 * MIB

    # Flows.
    flow_rate_limit: Count = 120
    """Flows registered and runs of flows begun a minute with one user's key; 0 is without a limit."""
    max_flows: Positive = 16
    """Runs of flows at once, each a process of its own; others wait, `max_queue` at the most."""

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_json: bool = False

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={'***' if value and name in _SECRETS else repr(value)}" for name, value in values)
        return f"Settings({', '.join(shown)})"

    @property
    def home_path(self) -> Path:
        return Path(self.home).expanduser()


FILE = "hutch.toml"
_ALIASES = {"EXECUTOR_API_KEY": "api_key", "PROXY_URL": "proxy_url"}
_LISTS = ("allowed_hosts", "allowed_origins", "egress_allow", "egress_http_hosts", "mcp_config")
_TABLES = ("metadata", "package_egress", "approvals")
_SECRETS = ("api_key", "database_url", "proxy_url")
# Variables that are not settings: other binaries.
_BINARIES = ("deno", "bwrap")


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from flags, environment and file, in that order of precedence.

    The file is `file`, or hutch.toml in the current directory, or the one in the home. Raises SettingError,
    which names where the value stands, the setting and what it wants.
    """
    environ = os.environ if environ is None else environ
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    found = {key: (value, key) for key, value in given.items()}
    for key, value in _from_environ(environ).items():
        found.setdefault(key, value)
    _warn_of_typos(environ)
    path = file or _find_file(_expand(*found.get("home", (HOME, "home"))))
    read = {} if path is None else _from_file(path)
    in_file = {key: (value, f"{path}: {key}") for key, value in read.items()}
    for key, placed in in_file.items():
        found.setdefault(key, placed)
    for key, (_, where) in found.items():
        if key not in Settings.__struct_fields__:
            raise SettingError(f"{where}: there is no such setting.{_similar(key)}")
    # In a file a text is a text; in the environment everything is.
    _converted({key: value for key, value in found.items() if value is in_file.get(key)}, strict=True)
    settings = _converted(found, strict=False)
    _expand(settings.home, found.get("home", ("", "home"))[1])
    return settings


# What is the server's own, and no business of a process that it starts.
_OUR_OWN = (
    "api_key",
    "host",
    "port",
    "allowed_hosts",
    "allowed_origins",
    "metadata",
    "executor_name",
    "region",
)


def as_environ(settings: Settings) -> dict[str, str]:
    """Variables by which another process of ours has the same settings, but for who may come in."""
    found: dict[str, str] = {}
    for key in settings.__struct_fields__:
        value = getattr(settings, key)
        if key in _OUR_OWN or value in (None, (), {}):
            continue
        if key in _TABLES:
            text = ",".join(f"{name}={each}" for name, each in value.items())
        elif key in _LISTS:
            text = ",".join(value)
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
        found[f"HUTCH_{key.upper()}"] = text
    return found


def _expand(home: Any, where: str) -> Path:
    """A home that is no path at all is refused here; whether it can be written is seen when it is."""
    try:
        return Path(home).expanduser()
    except (TypeError, RuntimeError) as error:
        raise SettingError(f"{where}: expected the path of a directory, got {home!r}: {error}") from None


def _find_file(home: Path) -> Path | None:
    for candidate in (Path(FILE), home / FILE):
        # A home that we may not look into has no settings for us.
        with suppress(OSError):
            if candidate.is_file():
                return candidate
    return None


def _from_file(path: Path) -> dict[str, Any]:
    import tomllib  # most have no file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"{path}: cannot be read: {reason}") from None


def _from_environ(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Values by setting, each with the variable that it came from. An empty variable counts as not set."""
    names = {f"HUTCH_{key.upper()}": key for key in Settings.__struct_fields__}
    found: dict[str, tuple[Any, str]] = {}
    # Our own names first, so that they beat their aliases.
    for name, key in [*names.items(), *_ALIASES.items()]:
        text = environ.get(name, "")
        if text and key not in found:
            found[key] = (_read(key, text), name)
    return found


def _read(key: str, text: str) -> Any:
    if key in _TABLES:
        return _table(text)
    return _items(text) if key in _LISTS else text


def _table(text: str) -> Any:
    """`a=b,c=d`; what is not of that form stays as it is, to be refused with the rest."""
    pairs = [item.partition("=") for item in _items(text)]
    return {key.strip(): value.strip() for key, _, value in pairs} if all(p[1] for p in pairs) else text


def _warn_of_typos(environ: Mapping[str, str]) -> None:
    """No error: a variable of somebody else's may begin as ours do."""
    known = (*Settings.__struct_fields__, *_BINARIES)
    for name in environ:
        key = name.removeprefix("HUTCH_").lower()
        if name.startswith("HUTCH_") and key not in known and (near := _nearest(key, known)):
            logger.warning("%s: there is no such setting. Did you mean HUTCH_%s?", name, near.upper())


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


# --- errors ---


def _converted(found: Mapping[str, tuple[Any, str]], *, strict: bool) -> Settings:
    try:
        return msgspec.convert({key: value for key, (value, _) in found.items()}, Settings, strict=strict)
    except msgspec.ValidationError as error:
        raise SettingError(_explain(str(error), found)) from None


def _explain(message: str, found: Mapping[str, tuple[Any, str]]) -> str:
    """msgspec says "Expected … - at `$.port`": name the place and the value, and all that would do."""
    _, _, path = message.partition(" - at `$.")
    key = path.rstrip("`").partition("[")[0]
    if key not in found:
        return message
    value, where = found[key]
    got = "something else" if key in _SECRETS else repr(value)
    return f"{where}: expected {_expected(key)}, got {got}."


def _expected(key: str) -> str:
    from msgspec.inspect import StructType, type_info

    info = type_info(Settings)
    assert isinstance(info, StructType)
    return _in_words(next(field.type for field in info.fields if field.name == key))


def _in_words(wanted: Type) -> str:
    from msgspec import inspect

    match wanted:
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most):
            noun = "an integer" if isinstance(wanted, inspect.IntType) else "a number"
            return f"{noun} from {least} to {most}" if most is not None else f"{noun} of at least {least:g}"
        case inspect.VarTupleType():
            return "a list of strings"
        case inspect.DictType():
            return "a table of strings (in a variable: name=value, separated by commas)"
        case _:
            return "a string"


def _similar(key: str) -> str:
    near = _nearest(key, Settings.__struct_fields__)
    return f" Did you mean {near}?" if near else ""


def _nearest(key: str, known: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(key, known, 1)), None)
