"""npm tools, toolscripts and other protocols on a server that runs guests in a cluster."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.contract.tpmjs.harness import no_registry_env, tool
from tests.npm.registry import Registry, run_registry
from tests.support.databases import PostgresServer
from tests.support.flows import flow, node, running_runtime
from tests.support.network.clusters import SECRET, FrontApp, open_front, running_nats, running_worker
from tests.support.processes import ServeProcess, copy_selftest, descendants, is_runner, running_server
from tests.support.processes import hutch as hutch_command
from tests.support.toolscripts import IMPORT, configure, everything_entry
from tests.support.waiting import eventually

import hutch
from hutch.cluster.messages import FrameType, GatewayRequest, GatewayResponse, decode, encode
from hutch.npm.package_spec import parse_spec
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.execute import ScriptRequest
from hutch.protocols.tpmjs.models import PackageToolCall, ToolOutcome
from hutch.sandbox.runner.profile import profile_for

# Fake of the package whose tool `hutch check` calls.
TEMPLATES = """
export const templateRenderTool = {
  description: "Renders a template",
  inputSchema: { type: "object", properties: {} },
  execute: ({ template, data }) => ({
    rendered: template.replace("{{name}}", data.name), variablesUsed: ["name"], unusedVariables: [],
  }),
};"""
GREET = """
    console.log('greeting');
    return `Hello ${params.name} from ${process.env.PLACE ?? 'nowhere'}`;
"""


@pytest.fixture(scope="module")
def npm() -> Iterator[Registry]:
    with run_registry() as registry, pytest.MonkeyPatch.context() as patch:
        for name, value in {**no_registry_env(), "NPM_CONFIG_REGISTRY": registry.url}.items():
            patch.setenv(name, value)
        registry.publish("greet", "1.2.0", {"index.js": tool(GREET)})
        registry.publish("@tpmjs/tools-template-render", "0.1.0", {"index.js": TEMPLATES})
        registry.publish(
            "fetches", "1.0.0", {"index.js": tool(f"return (await fetch('{registry.url}/greet')).status")}
        )
        yield registry


@pytest.fixture(scope="module")
def cluster(npm: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nats() as nats:
        allowed = f"127.0.0.1:{npm.port}"
        env = {"HUTCH_EGRESS_ALLOW": allowed}
        with running_worker(nats.url, tmp_path_factory.mktemp("worker"), **env):
            yield nats.url


@pytest.fixture(scope="module")
async def front(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FrontApp]:
    folder = tmp_path_factory.mktemp("front")
    with everything_entry() as everything:
        config = configure(folder, {"every": everything})
        async with open_front(cluster, folder / "home", mcp_config=(config,), egress="none") as front:
            yield front


@pytest.fixture(scope="module")
def server(
    cluster: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    with postgres.database_with_tables() as url:
        env = {
            "HUTCH_HOME": str(tmp_path_factory.mktemp("server")),
            "HUTCH_CLUSTER_SECRET": SECRET,
            "HUTCH_CLUSTER_LOCAL": "false",
            "HUTCH_DATABASE_URL": url,
        }
        with running_server("--cluster", cluster, **env) as server:
            yield server


async def call(front: FrontApp, package: str, **fields: Any) -> ToolOutcome:
    request = PackageToolCall(
        spec=parse_spec(*package.split(" ")),
        name="tool",
        params={"name": "Bo"},
        caller="ann",
        **{"env": {}, **fields},
    )
    return await front.app.tools.execute(request)


async def test_worker_installs_a_package_and_runs_its_tool(front: FrontApp) -> None:
    outcome = await call(front, "greet ^1.0.0", env={"PLACE": "the worker"})
    assert outcome.failure is None
    assert msgspec.json.decode(outcome.output_json or b"") == "Hello Bo from the worker"
    assert (outcome.resolved_version, outcome.logs) == ("1.2.0", ["greeting"])
    assert front.app.packages.list() == []


async def test_egress_policy_of_the_worker_applies(front: FrontApp) -> None:
    """The worker's policy allows the registry, and the front's policy allows nothing. So the tool can reach
    the registry.
    """
    outcome = await call(front, "fetches 1.0.0")
    assert outcome.output_json == b"200"


async def test_missing_package_has_the_error_of_the_worker(front: FrontApp) -> None:
    outcome = await call(front, "missing-package")
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.output_json) == ("package_not_found", None)


async def test_tool_is_described_by_the_worker(front: FrontApp) -> None:
    request = PackageToolCall(spec=parse_spec("greet"), name="tool", params={}, env={}, caller="ann")
    description, failure, version = await front.app.tools.describe(request)
    assert failure is None
    assert description is not None
    assert (description.description, version) == ("made up", "1.2.0")


async def test_script_calls_tools_through_the_gateway_of_the_front(front: FrontApp) -> None:
    output: list[bytes] = []
    code = f"{IMPORT}console.log('working'); return (await tools.every.add({{a: 20, b: 22}})).sum"
    request = ScriptRequest(script=Script(code), on_output=lambda _, data: output.append(data))
    result = await front.app.scripts.run(request, front.app.script_gateway)
    assert (result.exit_code, result.value_json) == (0, "42"), (result, output)
    assert b"".join(output) == b"working\n"


async def test_worker_cannot_call_tools_for_runs_that_it_does_not_have(
    front: FrontApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert front.app.front is not None
    [worker] = front.app.front.membership.workers.values()
    revision = await front.app.script_gateway.revision()
    worker.gateways.add(revision)
    runner = worker.open_runner(profile_for("quickjs"), "quickjs", "a run without a gateway")
    numbers = itertools.count(1)

    async def status_of(run_id: str | None) -> int:
        sent: list[GatewayResponse] = []
        request = GatewayRequest(
            gateway=revision, run_id=run_id, method="POST", url=b"/tools/every__add", headers=[], body=b"{}"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker.link, "send", lambda *frame: sent.append(decode(frame[2], GatewayResponse)))
            front.app.front._on_request(worker, FrameType.REQUEST, next(numbers), encode(request))  # type: ignore[union-attr]
            await eventually(lambda: sent)
        return sent[0].status

    for run_id in (None, "the run of another worker", runner.run_id):
        assert await status_of(run_id) == 403
    await eventually(lambda: worker.request_bytes == 0)
    monkeypatch.setattr("hutch.cluster.front.MAX_REQUEST_BYTES", 1_000)
    assert await status_of(runner.run_id) == 503
    worker.forget_runner(runner, "quickjs")


async def test_exit_code_of_a_script_comes_from_the_worker(front: FrontApp) -> None:
    request = ScriptRequest(script=Script("Deno.exit(3)"), check=False)
    result = await front.app.scripts.run(request, front.app.script_gateway)
    assert result.exit_code == 3


async def test_server_of_a_cluster_serves_all_protocols(server: ServeProcess) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        run = await http.post("/run", json={"code": "console.log('x'); 1 + 1"})
        assert (run.json()["ok"], run.json()["result"]) == (True, 2)
        body = {"packageName": "greet", "name": "tool", "params": {"name": "Bo"}}
        executed = await http.post("/execute-tool", json=body)
        assert executed.json()["output"] == "Hello Bo from nowhere"
        metrics = (await http.get("/metrics")).text
        assert 'hutch_wanted_places{kind="quickjs"} 0.0' in metrics
        assert "hutch_workers 1.0" in metrics
        assert "hutch_processes{" not in metrics
    async with hutch.connect(server.execbox) as remote:

        def double(n: int) -> int:
            return 2 * n

        result = await remote.run("return await tools.double({n: 21})", tools=[double])
        assert result.result == 42


async def test_client_of_a_cluster_has_files_and_suspended_runs(server: ServeProcess) -> None:
    def ask(question: str) -> str:
        raise hutch.Suspend(question)

    code = """
        const text = await files.text("a.txt");
        await files.write("b.txt", text + await tools.ask({question: "Really?"}));"""
    async with hutch.connect(server.execbox) as remote:
        result = await remote.run(code, tools=[ask], files={"a.txt": "é"})
        (call,) = result.pending_calls
        run = await remote.resume(result.run_id, {call.call_id: "!"}, tools=[ask])
        (file,) = (await run.result()).raise_for_error().files
        assert file.text == "é!"


def test_server_of_a_cluster_passes_the_compliance_tests(server: ServeProcess) -> None:
    done = hutch_command("check", server.url)
    assert done.returncode == 0, done.stdout
    assert "✗" not in done.stdout
    assert "✓ POST /execute-async" in done.stdout
    scores = re.findall(r"^(?:Result|Extended): (\d+)/(\d+) tests passed", done.stdout, re.M)
    assert len(scores) == 2
    assert all(passed == total for passed, total in scores), done.stdout


def test_steps_of_flows_run_on_workers(cluster: str, tmp_path: Path) -> None:
    copy_selftest(tmp_path)
    env = {"HUTCH_HOME": str(tmp_path), "HUTCH_CLUSTER_URL": cluster, "HUTCH_CLUSTER_SECRET": SECRET}
    with running_runtime(**env, HUTCH_CLUSTER_LOCAL="false") as runtime:
        ended = runtime.run(flow([node("s", "code.run", code="async () => 7")]))
        assert ended.outputs == {"s": 7}
        assert not any(is_runner(pid, "quickjs.js") for pid in descendants(runtime.process.pid))
