"""External runners that execute Python statements of a test."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hutch

WithRunner = Callable[..., hutch.Hutch]

RUNNER = textwrap.dedent(
    """
    import json, sys, time

    def send(**message):
        sys.stdout.write(json.dumps(message) + "\\n")
        sys.stdout.flush()

    def receive():
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)

    def done(id, **more):
        send(**{"type": "done", "id": id, "ok": True, "durationMs": 1, "logs": [], **more})

    def call(_, call_id="c1", tool="note", provider="tools", input=None, **more):
        send(type="tool_call", callId=call_id, providerName=provider, safeToolName=tool, input=input, **more)

    def raw(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    while True:
        message = receive()
        if message["type"] != "execute":
            continue
        id = message["id"]
        BEHAVIOUR
    """
)


def scripted_runner(script: Path, behaviour: str, **settings: Any) -> hutch.Hutch:
    """Makes a sandbox whose runner executes the Python statements in `behaviour` when it receives
    `execute`.
    """
    body = textwrap.indent(textwrap.dedent(behaviour).strip(), "    ").lstrip()
    script.write_text(RUNNER.replace("BEHAVIOUR", body))
    return hutch.Hutch(runner=[sys.executable, "-I", str(script)], **settings)
