"""What the runtime can do, said before anything of it is loaded.

Kinds by name and where each is; those that a user's packages bring are found by the entry points of the group
`hutch.step_kinds`, whose names are the kinds'.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hutch._version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hutch.step_kinds"
CONCURRENCY = 64
SHELL = "shell.run"
_KINDS = "hutch.doors.rep.kinds"

KINDS: dict[str, str] = {
    "http.get": f"{_KINDS}.http:GET",
    "http.request": f"{_KINDS}.http:REQUEST",
    "mcp.call": f"{_KINDS}.mcp:CALL",
    "tool.execute": f"{_KINDS}.tool:EXECUTE",
    "ability.execute": f"{_KINDS}.ability:EXECUTE",
    "toolscript.run": f"{_KINDS}.script:RUN",
    "code.run": f"{_KINDS}.code:RUN",
    "flow.run": f"{_KINDS}.subflow:RUN",
    "switch": f"{_KINDS}.control:SWITCH",
    "finish": f"{_KINDS}.control:FINISH",
    "dsl.emit": f"{_KINDS}.control:EMIT",
    "wait": f"{_KINDS}.waiting:WAIT",
    "approve": f"{_KINDS}.waiting:APPROVE",
    SHELL: f"{_KINDS}.shell:RUN",
}


def shell_is_allowed(environ: Mapping[str, str]) -> bool:
    """By the one who starts the runtime; the run's own option has to say so too."""
    return environ.get("TRACE_MIND_ALLOW_SHELL") == "1"


def own_kinds(environ: Mapping[str, str]) -> dict[str, str]:
    """Where each kind is that this runtime brings itself."""
    return {name: where for name, where in KINDS.items() if name != SHELL or shell_is_allowed(environ)}


def extensions() -> dict[str, EntryPoint]:
    """The kinds of installed packages, by name. None of them takes the place of one of ours."""
    if not _may_have_extensions():
        return {}
    from importlib.metadata import entry_points

    return {each.name: each for each in entry_points(group=GROUP) if each.name not in KINDS}


def _may_have_extensions() -> bool:
    """Whether to look closely: that takes longer than all the rest before the first answer."""
    return any(_mentions_group(folder) for folder in sys.path)


def _mentions_group(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208 - pathlib is not loaded yet
    except NotADirectoryError:
        # An archive: nobody can tell from outside.
        return not folder.endswith(f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
    except OSError:
        return False
    return any(
        _has_group(f"{folder or '.'}/{name}/entry_points.txt")
        for name in names
        if name.endswith((".dist-info", ".egg-info"))
    )


def _has_group(path: str) -> bool:
    try:
        with open(path, "rb") as opened:  # noqa: PTH123
            return GROUP.encode() in opened.read()
    except OSError:
        return False


def capabilities(environ: Mapping[str, str]) -> dict[str, Any]:
    """The answer to `Runtime.Capabilities`."""
    return {
        "version": __version__,
        "step_kinds": [*own_kinds(environ), *extensions()],
        "limits": {"concurrency": CONCURRENCY},
    }
