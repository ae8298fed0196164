"""`/health`, `/metrics`, and requests with a wrong path or method."""

from __future__ import annotations

import re
from datetime import datetime

import httpx2
import pytest
from tests.http.execbox_client import connect_execbox
from tests.support.messages import execute
from tests.support.processes import ServeProcess
from websockets.exceptions import InvalidStatus

import hutch


def test_health_reports_status_and_version(server: ServeProcess) -> None:
    answer = httpx2.get(f"{server.url}/health")
    body = answer.json()
    assert (answer.status_code, body["status"]) == (200, "ok")
    assert body["implementationVersion"] == hutch.__version__
    assert body["isolation"] in ("container", "process")
    assert body["uptimeSeconds"] >= 0
    assert datetime.fromisoformat(body["timestamp"]).utcoffset() is not None
    assert "server" not in answer.headers


async def test_metrics_count_runs_calls_and_processes(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        for id, code in (("right", "1"), ("wrong", "throw 1")):
            await client.send(execute(id, code))
            await client.done(id)
    answer = httpx2.get(f"{server.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for pattern in (
        r'hutch_runs_total{engine="quickjs",outcome="ok",protocol="execbox"} [1-9]',
        r'hutch_runs_total{engine="quickjs",outcome="runtime_error",protocol="execbox"} 1.0',
        r'hutch_run_seconds_count{engine="quickjs",protocol="execbox"} [2-9]',
        r'hutch_run_seconds_bucket{engine="quickjs",le="\+Inf",protocol="execbox"} [2-9]',
        r'hutch_owner_runs_total{owner="local",result="failed"} 1.0',
        r'hutch_tool_calls_total{engine="quickjs"} \d',
        r'hutch_processes{engine="quickjs"} [1-9]',
        r'hutch_executions_in_flight{engine="quickjs"} 0.0',
        r"hutch_processes_started_total [1-9]",
        r"hutch_executions_waiting 0.0",
    ):
        assert re.search(pattern, answer.text), pattern


@pytest.mark.parametrize("path", ["/nowhere", "/health/", "/execbox/x"])
def test_unknown_path_returns_404_in_the_common_error_format(server: ServeProcess, path: str) -> None:
    answer = httpx2.get(server.url + path)
    assert answer.status_code == 404
    assert answer.json() == {
        "success": False,
        "error": {"code": "NOT_FOUND", "message": f"There is nothing at {path}"},
    }


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_wrong_method_returns_405_with_the_allowed_ones(server: ServeProcess, path: str) -> None:
    answer = httpx2.post(server.url + path, json={})
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert answer.json() == {
        "success": False,
        "error": {"code": "METHOD_NOT_ALLOWED", "message": f"{path} does not take POST; it takes GET, HEAD"},
    }


def test_execbox_without_upgrade_returns_426(server: ServeProcess) -> None:
    answer = httpx2.get(f"{server.url}/execbox")
    assert answer.status_code == 426
    assert answer.json()["error"] == {
        "code": "UPGRADE_REQUIRED",
        "message": f"This is a WebSocket endpoint; connect to {server.execbox}",
    }


async def test_websocket_to_an_unknown_path_returns_404(server: ServeProcess) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect_execbox(server.execbox + "/nowhere"):
            pass
    assert refused.value.response.status_code == 404
    assert b"There is nothing at /execbox/nowhere" in (refused.value.response.body or b"")
