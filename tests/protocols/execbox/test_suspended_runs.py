"""Code of `POST /run` that waits for an approval, also while the server is killed and started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server, wait_until
from tests.support.toolscripts import stdio

import hutch

CODE = """
    const log = [];
    const note = async (name, call) => { const value = await call; log.push(name); return value };
    const [free, asked] = await Promise.all([
        note("free", tools.server.add({a: 1, b: 2})),
        note("asked", tools.server.echo({value: "hello"})),
    ]);
    console.log("continued");
    return {free, asked, log};
"""


class Client:
    """Starts a server whose tool `server__echo` needs an approval, and sends requests to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pool = ThreadPoolExecutor(4)
        config = home / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"server": stdio("everything")}}))
        (home / "hutch.toml").write_text(f'mcp_config = ["{config}"]\n[approvals]\nserver__echo = "ask"\n')

    def server(self) -> Any:
        return running_server(HUTCH_HOME=str(self.home))

    def start(self, server: ServeProcess, code: str = CODE) -> Future[httpx2.Response]:
        """Runs code in the background."""

        def post() -> httpx2.Response:
            return httpx2.post(f"{server.url}/run", json={"code": code}, timeout=TIMEOUT_SECONDS)

        return self.pool.submit(post)

    def approval(self, server: ServeProcess) -> dict[str, Any]:
        """Waits for the only approval."""

        def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = httpx2.get(f"{server.url}/approvals").json()
            return found

        wait_until(lambda: bool(listed()))
        (approval,) = listed()
        return approval

    def decide(self, server: ServeProcess, approval: dict[str, Any], **answer: Any) -> httpx2.Response:
        return httpx2.post(f"{server.url}/approvals/{approval['id']}", json=answer)

    def result(self, server: ServeProcess, run_id: str) -> dict[str, Any]:
        """Waits until the result of a run is stored, and returns it."""
        path = f"{server.url}/runs/{run_id}/result"
        wait_until(lambda: httpx2.get(path).status_code == 200)
        found: dict[str, Any] = httpx2.get(path).json()
        return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(tmp_path_factory.mktemp("home"))
    yield client
    client.pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def server(client: Client) -> Iterator[ServeProcess]:
    with client.server() as running:
        yield running


def test_run_waits_suspended_for_an_approval_and_its_caller_gets_the_result(
    client: Client, server: ServeProcess
) -> None:
    answer = client.start(server)
    approval = client.approval(server)
    assert approval["arguments"] == {"value": "hello"}
    assert approval["seconds"] is None
    run = httpx2.get(f"{server.url}/runs/{approval['run']}").json()
    assert run["outcome"] == "suspended"
    assert client.decide(server, approval, decision="allow").status_code == 200
    body = answer.result().json()
    assert body["ok"], body
    assert (body["result"]["log"], body["logs"]) == (["free", "asked"], ["continued"])
    assert body["run_id"] == approval["run"]
    assert client.decide(server, approval, decision="allow").status_code == 409
    wait_until(lambda: httpx2.get(f"{server.url}/runs/{approval['run']}").json()["outcome"] == "ok")


async def test_client_of_the_websocket_cannot_answer_for_the_person(
    client: Client, server: ServeProcess
) -> None:
    """Only runs whose tools a client has can be continued over the WebSocket."""
    answer = client.start(server)
    approval = await asyncio.to_thread(client.approval, server)
    run_id = approval["run"]
    async with hutch.connect(server.execbox) as remote:
        record = await asyncio.to_thread(httpx2.get, f"{server.url}/runs/{run_id}")
        (call,) = record.json()["pending_calls"]
        for request in (remote.resume(run_id, {call["call_id"]: "forged"}), remote._seal(run_id)):
            with pytest.raises(hutch.ResumeError, match=f"POST /runs/{run_id}/resume") as refused:
                await request
            assert refused.value.code == "tools_elsewhere"
    client.decide(server, approval, decision="deny")
    assert not (await asyncio.to_thread(answer.result)).json()["ok"]


def test_denied_call_fails_in_the_guest(client: Client, server: ServeProcess) -> None:
    code = "try { await tools.server.echo({value: 'x'}) } catch (e) { return e.message }"
    answer = client.start(server, code)
    client.decide(server, client.approval(server), decision="deny", reason="too late")
    assert answer.result().json()["result"] == "The call of server__echo was denied: too late"


def test_suspended_run_can_be_cancelled(client: Client, server: ServeProcess) -> None:
    answer = client.start(server, "return await tools.server.echo({value: 'x'})")
    approval = client.approval(server)
    run = f"{server.url}/runs/{approval['run']}"
    assert httpx2.post(f"{run}/cancel").status_code == 200
    assert httpx2.get(run).json()["outcome"] == "cancelled"
    assert httpx2.get(f"{server.url}/approvals").json() == []
    body = answer.result().json()
    assert "cancelled" in body["error"]["message"]


def test_another_server_decides_and_the_caller_gets_the_result(client: Client, server: ServeProcess) -> None:
    answer = client.start(server)
    asked = client.approval(server)
    with client.server() as other:
        assert client.approval(other) == asked
        assert client.decide(other, asked, decision="allow").status_code == 200
        body = answer.result().json()
    assert body["ok"], body
    assert body["result"]["log"] == ["free", "asked"]


def test_run_continues_after_the_server_was_killed(client: Client, tmp_path: Path) -> None:
    client = Client(tmp_path)
    with client.server() as first:
        answer = client.start(first)
        before = client.approval(first)
        first.process.kill()
        first.process.wait(TIMEOUT_SECONDS)
        with pytest.raises(httpx2.HTTPError):
            answer.result()
    with client.server() as second:
        after = client.approval(second)
        assert after == before
        assert client.decide(second, after, decision="allow").status_code == 200
        body = client.result(second, before["run"])
    assert body["ok"], body
    assert body["result"]["log"] == ["free", "asked"]
    assert body["logs"] == ["continued"]


def test_run_that_waits_for_a_timer_continues_after_a_deploy(tmp_path: Path) -> None:
    client = Client(tmp_path)
    body = {
        "code": "await new Promise((resolve) => setTimeout(resolve, 100_000))",
        "limits": {"timeout_ms": 200_000},
    }
    with client.server() as first:
        answer = client.pool.submit(httpx2.post, f"{first.url}/run", json=body, timeout=TIMEOUT_SECONDS)
        wait_until(lambda: bool(httpx2.get(f"{first.url}/runs?status=running").json()["runs"]))
        first.process.terminate()
        result = answer.result().json()
        assert result["error"]["code"] == "suspended", result
        first.process.wait(TIMEOUT_SECONDS)
    with client.server() as second:
        run = f"{second.url}/runs/{result['run_id']}"
        wait_until(lambda: httpx2.get(run).json()["status"] == "running")
        assert httpx2.post(f"{run}/cancel").json()["status"] == "cancelling"
        assert client.result(second, result["run_id"])["error"]["code"] == "timeout"
