"""Answers what needs nothing, before anything is loaded: the rest of the house opens with the first run.

An orchestrator asks for the capabilities first, and some start a process for nothing else.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping
from typing import Any

from hutch.doors.rep import rpc
from hutch.doors.rep.capabilities import capabilities

_CHUNK = 256 * 1024


def receive(read: int, write: int, environ: Mapping[str, str], lines: rpc.Lines) -> list[bytes] | None:
    """Serves until a line comes that is not for the porch. Gives it and those that came with it.

    None when the input ended before, or nobody reads our answers.
    """
    methods: dict[str, rpc.Method] = {
        "Runtime.Capabilities": lambda _: capabilities(environ),
        "Runtime.Health": health,
    }
    while True:
        data = _read(read)
        # The last line of a file may lack its end.
        waiting = lines.feed(data or b"\n")
        for number, line in enumerate(waiting):
            try:
                request = rpc.read(line) if line.strip() else None
            except rpc.Refused as refused:
                answer: bytes | None = refused.answer
            else:
                if request is not None and request.method not in methods:
                    return waiting[number:]
                answer = None if request is None else answered(request, methods)
            if answer is not None and not _write(write, answer):
                return None
        if not data:
            return None


def answered(request: rpc.Request, methods: Mapping[str, rpc.Method]) -> bytes | None:
    """What a request gets. REP has no notifications: one is neither obeyed nor, by JSON-RPC, answered."""
    if request.is_notification:
        print(f"hutch: ignored {request.method[:100]!r}: it has no id", file=sys.stderr)  # noqa: T201
        return None
    return rpc.answer(request, methods)


def health(_: dict[str, Any], active: int = 0) -> dict[str, Any]:
    """The answer to `Runtime.Health`."""
    return {"ok": True, "details": {"active_runs": active}}


def _read(file: int) -> bytes:
    while True:
        try:
            return os.read(file, _CHUNK)
        except BlockingIOError:
            select.select([file], [], [])
        except OSError:
            return b""


def _write(file: int, data: bytes) -> bool:
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:
            select.select([], [file], [])
        except OSError:
            return False
    return True
