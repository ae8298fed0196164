"""Interoperability with the published TypeScript clients of MCP: `@modelcontextprotocol/sdk`, for protocols
before 2026-07-28, and `@modelcontextprotocol/client`, for 2026-07-28.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import TIMEOUT_SECONDS, running_server

from hutch.sandbox import deno_binary

PROGRAM = Path(__file__).with_name("mcp_client.ts")
BUILD = Path(__file__).parents[2] / "build"
ORDERED = "40\n\n(1 tool call)"
QUESTION = 'May order of shop be called?\n{"article":"lamp","count":2}'


def use(library: str, url: str) -> dict[str, Any]:
    """Runs the client and returns what it saw."""
    command = [
        deno_binary.find_deno(),
        "run",
        "--quiet",
        "--no-check",
        "--no-lock",
        "--node-modules-dir=none",
    ]
    done = subprocess.run(
        [*command, "--allow-all", str(PROGRAM), library, f"{url}/mcp"],
        env={**os.environ, "DENO_DIR": str(BUILD / "deno"), "DENO_TLS_CA_STORE": "mozilla,system"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize("library", ["sdk", "client"])
def test_published_client_lists_runs_approves_follows_and_cancels(library: str, tmp_path: Path) -> None:
    (tmp_path / "hutch.toml").write_text('example_tools = true\n[approvals]\nshop__order = "ask"\n')
    with running_server(HUTCH_HOME=str(tmp_path)) as server:
        seen = use(library, server.url)
        assert seen["tools"] == ["search_tools", "describe_tools", "run_code", "continue_run"]
        assert seen["approved"] == {"javascript": ORDERED, "toolscript": ORDERED}
        assert seen["questions"] == [QUESTION] * 2
        assert [text.partition(" (")[0] for text in seen["progress"]] == ["call 1: get_price of shop"]
        assert "the user has changed their mind" in seen["cancelled"]
        assert seen["waiting"] == {"javascript": ORDERED}
