"""Checks that a runtime can run a flow, and caches the capabilities of an unsuitable runtime.

Hutch never reads the cache, because it requests the capabilities for every run. The cache only lets people
inspect why a runtime was refused. The specification of the public orchestrator (section 9) defines the
location of the cache.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.problems import NameSuggester
from hutch.protocols.rep.ir.source.project import check_engine
from hutch.protocols.rep.jsonrpc import UNSUPPORTED_KIND, rep_error

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow

_MAX_SHOWN_KINDS = 30


class RuntimeCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime's capabilities (section 5.1)."""

    version: str
    step_kinds: tuple[str, ...]
    limits: dict[str, Any]


class UnsuitableRuntime(Exception):
    """The runtime cannot run the flow. `wire` is the REP error."""

    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire["message"])
        self.wire = wire


def parse_capabilities(answer: Any) -> RuntimeCapabilities:
    """Decodes the answer to `Runtime.Capabilities`. Raises UnsuitableRuntime with all problems."""
    problems = _problems(answer)
    if problems:
        message = f"The runtime's capabilities are invalid: {'; '.join(problems)}."
        raise UnsuitableRuntime(
            rep_error(UNSUPPORTED_KIND, message, details={"problems": problems}, cause="Capabilities")
        )
    return RuntimeCapabilities(
        version=answer["version"], step_kinds=tuple(answer["step_kinds"]), limits=answer["limits"]
    )


def _problems(answer: Any) -> list[str]:
    if not isinstance(answer, dict):
        return ["expected an object with version, step_kinds and limits"]
    kinds = answer.get("step_kinds")
    faults = (
        ("version", "a text", isinstance(answer.get("version"), str)),
        ("step_kinds", "a list of texts", isinstance(kinds, list) and all(isinstance(k, str) for k in kinds)),
        ("limits", "an object", isinstance(answer.get("limits"), dict)),
    )
    return [
        f"{name}: expected {what}, got {'something else' if name in answer else 'none'}"
        for name, what, is_right in faults
        if not is_right
    ]


def check_step_kinds(flow: Flow, supported: RuntimeCapabilities, engine: str) -> None:
    """Checks that the runtime supports all step kinds of a flow, except control kinds, which runtimes do not
    have to declare. Raises UnsuitableRuntime.
    """
    missing = sorted(set(flow.step_kinds()).difference(supported.step_kinds))
    if not missing:
        return
    suggester = NameSuggester()
    close = {kind: suggester.closest(kind, supported.step_kinds) for kind in missing[:_MAX_SHOWN_KINDS]}
    named = ", ".join(f"{kind} (did you mean {near}?)" if near else kind for kind, near in close.items())
    if len(missing) > _MAX_SHOWN_KINDS:
        named += f" and {len(missing) - _MAX_SHOWN_KINDS} more"
    kinds = ", ".join(supported.step_kinds[:_MAX_SHOWN_KINDS]) or "none"
    more = (
        ""
        if len(supported.step_kinds) <= _MAX_SHOWN_KINDS
        else f" and {len(supported.step_kinds) - _MAX_SHOWN_KINDS} more"
    )
    missing_kinds = frozenset(missing)
    affected = [node.id for node in flow.all_nodes() if node.kind in missing_kinds]
    raise UnsuitableRuntime(
        rep_error(
            UNSUPPORTED_KIND,
            f"The runtime {engine} has no steps of the kind {named}; it has {kinds}{more}.",
            step_id=affected[0],
            details={"missing": missing, "steps": affected, "supported": list(supported.step_kinds)},
        )
    )


# --- cache ---


def _cache_folder() -> Path:
    return Path("~/.trace_mind/runtime_capabilities").expanduser()


def cache_file(engine: str) -> Path:
    """Returns the path of a runtime's cache file. Raises SettingError if the name is not valid."""
    return _cache_folder() / f"{check_engine(engine)}.json"


def cache_capabilities(engine: str, capabilities: Any) -> Path | None:
    """Writes the capabilities atomically. Returns None if the file cannot be written."""
    file = cache_file(engine)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(capabilities, indent=2) + "\n", encoding="utf-8")
        temporary.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return None
    return file


def clear_cache(engine: str | None) -> list[Path]:
    """Deletes the cache file of one runtime, or of all runtimes. Returns the deleted files. Raises
    SettingError.
    """
    files = sorted(_cache_folder().glob("*.json")) if engine is None else [cache_file(engine)]
    deleted = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
            deleted.append(file)
    return deleted
