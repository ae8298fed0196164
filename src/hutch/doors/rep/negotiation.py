"""Whether a runtime can run a flow: its capabilities, asked each time, and kept where they did not suffice.

They are kept where the public orchestrator's specification has them (section 9), for people to look at.
"""

from __future__ import annotations

import contextlib
import json
import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep.codes import UNSUPPORTED_KIND, failure
from hutch.doors.rep.project import check_engine

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow

_SHOWN_KINDS = 30


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime says of itself (section 5.1)."""

    version: str
    step_kinds: tuple[str, ...]
    limits: dict[str, Any]


class Unsuitable(Exception):
    """A runtime that cannot run the flow; `wire` is the REP error for that."""

    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire["message"])
        self.wire = wire


def capabilities(told: Any) -> Capabilities:
    """The answer to `Runtime.Capabilities`. Raises Unsuitable with all that is wrong or missing."""
    problems = _problems(told)
    if problems:
        message = f"The runtime's capabilities are not those of REP: {'; '.join(problems)}."
        raise Unsuitable(
            failure(UNSUPPORTED_KIND, message, details={"problems": problems}, cause="Capabilities")
        )
    return Capabilities(version=told["version"], step_kinds=tuple(told["step_kinds"]), limits=told["limits"])


def _problems(told: Any) -> list[str]:
    if not isinstance(told, dict):
        return ["expected an object with version, step_kinds and limits"]
    kinds = told.get("step_kinds")
    faults = (
        ("version", "a text", isinstance(told.get("version"), str)),
        ("step_kinds", "a list of texts", isinstance(kinds, list) and all(isinstance(k, str) for k in kinds)),
        ("limits", "an object", isinstance(told.get("limits"), dict)),
    )
    return [
        f"{name}: expected {what}, got {'something else' if name in told else 'none'}"
        for name, what, is_right in faults
        if not is_right
    ]


def suit(flow: Flow, has: Capabilities, engine: str) -> None:
    """Control kinds are no matter of negotiation (decision 7). Raises Unsuitable."""
    missing = [kind for kind in flow.step_kinds() if kind not in has.step_kinds]
    if not missing:
        return
    close = {kind: get_close_matches(kind, has.step_kinds, 1) for kind in missing}
    told = ", ".join(f"{kind} (is {near[0]} meant?)" if near else kind for kind, near in close.items())
    kinds = ", ".join(has.step_kinds[:_SHOWN_KINDS]) or "none"
    more = "" if len(has.step_kinds) <= _SHOWN_KINDS else f" and {len(has.step_kinds) - _SHOWN_KINDS} more"
    uses = [node.id for node in flow.nodes.values() if node.kind in missing]
    raise Unsuitable(
        failure(
            UNSUPPORTED_KIND,
            f"The runtime {engine} has no steps of the kind {told}; it has {kinds}{more}.",
            step_id=uses[0],
            details={"missing": missing, "steps": uses, "supported": list(has.step_kinds)},
        )
    )


# --- the cache ---


def cache_folder() -> Path:
    return Path("~/.trace_mind/runtime_capabilities").expanduser()


def cache_file(engine: str) -> Path:
    """Raises SettingError for what is no name of a file."""
    return cache_folder() / f"{check_engine(engine)}.json"


def remember(engine: str, told: Any) -> Path | None:
    """Keeps what a runtime said of itself, as a whole or not at all. None if that could not be."""
    file = cache_file(engine)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        aside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        return None
    return file


def forget(engine: str | None) -> list[Path]:
    """Removes what is kept of one runtime, or of all, and gives the files. Raises SettingError."""
    files = sorted(cache_folder().glob("*.json")) if engine is None else [cache_file(engine)]
    gone = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
            gone.append(file)
    return gone
