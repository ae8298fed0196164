"""One typed Settings: flags beat HUTCH_* variables, which beat hutch.toml, which beats the defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hutch.errors import SettingError

MIB = 1024 * 1024

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


def _cores() -> int:
    return os.cpu_count() or 1


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that an operator can choose."""

    home: str = "~/.hutch"
    """State: caches, keys, databases."""
    isolation: Literal["auto", "container", "process"] = "auto"
    """`auto` takes the strongest that the self-test proves; `container` refuses to start on less."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 4111
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

    # The pool.
    quickjs_warm: Count = 1
    """Runner processes without an owner kept ready."""
    quickjs_processes: Positive = _cores()
    """The most runner processes of one owner."""
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

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_json: bool = False

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "api_key")
        return f"Settings({', '.join(shown)}, api_key={'***' if self.api_key else None})"

    @property
    def home_path(self) -> Path:
        return Path(self.home).expanduser()


_ALIASES = {"EXECUTOR_API_KEY": "api_key"}
_LISTS = ("allowed_hosts", "allowed_origins")


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from flags, environment and file, in that order of precedence.

    Raises SettingError with the name of the key and what it wants.
    """
    environ = os.environ if environ is None else environ
    merged: dict[str, Any] = {}
    path = file or _find_file(environ)
    if path is not None:
        merged.update(_from_file(path))
    merged.update(_from_environ(environ))
    merged.update({key: value for key, value in (flags or {}).items() if value is not None})
    try:
        return msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingError(_explain(error)) from None


def _find_file(environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HUTCH_HOME", "~/.hutch")).expanduser()
    for candidate in (Path("hutch.toml"), home / "hutch.toml"):
        if candidate.is_file():
            return candidate
    return None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path}: {error}") from None


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    known = set(Settings.__struct_fields__)
    found: dict[str, Any] = {}
    # Our own names first, so that they beat their aliases.
    for name, value in sorted(environ.items(), key=lambda item: item[0] in _ALIASES):
        key = _ALIASES.get(name) or (name[6:].lower() if name.startswith("HUTCH_") else None)
        if key not in known or value == "" or (name in _ALIASES and key in found):
            continue
        found[key] = value.split(",") if key in _LISTS else value
    return found


def _explain(error: msgspec.ValidationError) -> str:
    """msgspec says "Expected … - at `$.port`"; name the setting first."""
    text = str(error)
    message, _, path = text.partition(" - at `$.")
    return f"{path.rstrip('`')}: {message}" if path else message
