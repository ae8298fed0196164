"""Runs whose server was killed are recorded by another server."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from tests.support.processes import TIMEOUT_SECONDS, running_server, wait_until
from tests.support.toolscripts import stdio

CODE = "await tools.server.add({a: 1, b: 2}); await tools.server.slow({seconds: 100})"


def test_run_of_a_killed_server_is_recorded_as_interrupted_with_its_calls(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"server": stdio("everything")}}))
    home = {"HUTCH_HOME": str(tmp_path), "HUTCH_MCP_CONFIG": str(config)}

    def stored() -> list[str]:
        with sqlite3.connect(tmp_path / "hutch.db") as database:
            sql = "SELECT run_id FROM running_runs WHERE record LIKE '%slow%'"
            rows = database.execute(sql).fetchall()
        return [run_id for (run_id,) in rows]

    body = {"code": CODE, "limits": {"timeout_ms": 100_000}}
    with ThreadPoolExecutor() as pool, running_server(**home) as first:
        pool.submit(httpx2.post, f"{first.url}/run", json=body, timeout=TIMEOUT_SECONDS)
        wait_until(stored)
        (run_id,) = stored()
        with running_server(**home) as second:
            # Run code on the second server. Then the second server has certainly made its first check for
            # runs of dead servers. This check must not find the run of the first server.
            assert httpx2.post(f"{second.url}/run", json={"code": "1"}).status_code == 200
            assert httpx2.get(f"{second.url}/runs/{run_id}").status_code == 404
            first.process.kill()
            first.process.wait(TIMEOUT_SECONDS)
    with running_server(**home) as third:
        wait_until(lambda: httpx2.get(f"{third.url}/runs/{run_id}").status_code == 200)
        wait_until(lambda: not stored())
        run: dict[str, Any] = httpx2.get(f"{third.url}/runs/{run_id}").json()
    assert (run["status"], run["outcome"]) == ("failed", "interrupted")
    assert [(call["tool"], call["ok"]) for call in run["tool_calls"]] == [("add", True), ("slow", False)]
    assert run["tool_calls"][1]["code"] == "interrupted"
