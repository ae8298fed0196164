"""Traces of each protocol, exported to a real OTLP receiver. Each trace is complete, and its spans have the
right parents.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import no_registry_env
from tests.npm import registry
from tests.protocols.abilities.harness import AbilityServer, FakeApi, UserClient, start_ability_server
from tests.support.flows import chain, flow, node
from tests.support.mcp_servers import trace_echo
from tests.support.mcp_servers.asgi_server import running_app
from tests.support.network.otlp import OtlpReceiver
from tests.support.processes import hutch

import hutch as hutch_api
from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchRequest
from hutch.protocols.abilities.headers import HeaderInjector
from hutch.settings import Settings
from hutch.telemetry.trace_context import TraceContext, current, use_context
from hutch.telemetry.tracer import Span, Tracer, open_tracer

CALLER_SPAN = "00f067aa0ba902b7"
SECRET = "tok-0123456789abcdefghij"
TOOLS = ("execbox", "mcp", "toolscript", "tpmjs", "rep", "abilities")


def trace_headers() -> tuple[str, dict[str, str]]:
    """Returns a new trace id, and the headers that a client of this trace sends."""
    trace_id = os.urandom(16).hex()
    return trace_id, {"traceparent": f"00-{trace_id}-{CALLER_SPAN}-01", "tracestate": "vendor=1"}


@pytest.fixture(scope="module")
def otlp() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
async def traced(
    anyio_backend: object, otlp: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AbilityServer]:
    """A server that exports traces and is connected to an MCP server over each transport."""
    home = tmp_path_factory.mktemp("traced")
    with registry.run_registry() as npm, running_app(trace_echo.app()) as remote:
        npm.publish("tool-package", files={"index.js": "export const add = {execute: ({a, b}) => a + b}"})
        config = home / "mcp.json"
        servers = {
            "stdio": {"command": sys.executable, "args": [trace_echo.__file__]},
            "http": {"type": "http", "url": f"{remote.url}/mcp"},
        }
        config.write_text(json.dumps({"mcpServers": servers}))
        async with start_ability_server(
            home,
            HUTCH_MCP_CONFIG=str(config),
            HUTCH_LOG_JSON="true",
            OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
            OTEL_EXPORTER_OTLP_HEADERS="x-tenant=anna",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
            OTEL_SERVICE_NAME="sandbox",
            OTEL_BSP_SCHEDULE_DELAY="20",
            **no_registry_env(),
            NPM_CONFIG_REGISTRY=npm.url,
        ) as running:
            yield running


@pytest.fixture(scope="module")
async def anna(traced: AbilityServer) -> UserClient:
    return await traced.user("anna", scopes=TOOLS)


async def run_code(anna: UserClient, code: str, headers: dict[str, str]) -> dict[str, Any]:
    answer = await anna.call("POST", "/run", json={"code": code}, headers=headers)
    body: dict[str, Any] = answer.json()
    assert answer.status_code == 200, body
    return body


async def test_run_continues_the_trace_of_its_request(
    anna: UserClient, otlp: OtlpReceiver, traced: AbilityServer
) -> None:
    trace_id, headers = trace_headers()
    body = await run_code(anna, "nowhere.near()", headers)
    spans = otlp.trace(trace_id, 2)
    run, queue = spans["run quickjs"], spans["queue"]
    assert (run.parent_id, queue.parent_id) == (CALLER_SPAN, run.span_id)
    assert (run.kind, run.is_error) == ("server", True)
    assert "nowhere is not defined" in run.message
    expected = {
        "hutch.run.id": body["run_id"],
        "hutch.protocol": "execbox",
        "hutch.owner": anna.user.id,
        "hutch.outcome": "runtime_error",
        "error.type": "runtime_error",
        "code.line.number": 1,
    }
    assert expected.items() <= run.attributes.items()
    assert run.resource["service.name"] == "sandbox"
    assert run.resource["deployment.environment.name"] == "test"
    assert otlp.headers["x-tenant"] == "anna"
    logged = json.loads(traced.server.logged(body["run_id"]))
    assert (logged["trace_id"], logged["span_id"]) == (trace_id, run.span_id)
    record = (await anna.get(f"/runs/{body['run_id']}")).json()
    assert record["trace_id"] == trace_id


@pytest.mark.parametrize("server", ["stdio", "http"])
async def test_tool_call_passes_its_span_to_the_mcp_server(
    anna: UserClient, otlp: OtlpReceiver, server: str
) -> None:
    trace_id, headers = trace_headers()
    body = await run_code(anna, f"return await tools.{server}.trace({{}})", headers)
    spans = otlp.trace(trace_id, 3)
    call = spans["execute_tool trace"]
    assert call.parent_id == spans["run quickjs"].span_id
    assert call.attributes["gen_ai.operation.name"] == "execute_tool"
    assert call.attributes["gen_ai.tool.name"] == "trace"
    sent = f"00-{trace_id}-{call.span_id}-01"
    assert body["result"] == {"meta": sent, "header": sent if server == "http" else None}


async def test_script_calls_belong_to_the_trace_in_meta(anna: UserClient, otlp: OtlpReceiver) -> None:
    trace_id, headers = trace_headers()
    code = 'import { tools } from "toolscript"; console.log(JSON.stringify(await tools.stdio.trace({})))'
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "run_code",
            "arguments": {"code": code, "format": "json"},
            "_meta": {
                **headers,
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
    answer = await anna.call(
        "POST",
        "/mcp",
        json=request,
        headers={
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "run_code",
        },
    )
    assert answer.status_code == 200, answer.text
    spans = otlp.trace(trace_id, 3)
    run, call = spans["run script"], spans["execute_tool trace"]
    assert (run.parent_id, call.parent_id) == (CALLER_SPAN, run.span_id)
    assert f"00-{trace_id}-{call.span_id}-01" in answer.text


async def test_package_tool_is_an_execute_tool_span_with_its_installation(
    anna: UserClient, otlp: OtlpReceiver
) -> None:
    trace_id, headers = trace_headers()
    call = {"packageName": "tool-package", "version": "1.0.0", "name": "add", "params": {"a": 1, "b": 2}}
    answer = await anna.call("POST", "/execute-tool", json=call, headers=headers)
    assert answer.json()["output"] == 3
    spans = otlp.trace(trace_id, 3)
    run = spans["execute_tool add"]
    assert (run.parent_id, run.attributes["gen_ai.tool.name"]) == (CALLER_SPAN, "add")
    assert run.attributes["hutch.label"] == "tool-package@1.0.0#add"
    assert {spans["install"].parent_id, spans["queue"].parent_id} == {run.span_id}
    assert 0 < spans["install"].seconds < run.seconds


async def test_batch_is_the_parent_of_its_calls(anna: UserClient, otlp: OtlpReceiver) -> None:
    trace_id, headers = trace_headers()
    call = {"packageName": "tool-package", "version": "1.0.0", "name": "add", "params": {"a": 1, "b": 2}}
    body = {"tools": [call, {**call, "name": "missing"}]}
    answer = await anna.call("POST", "/execute-batch", json=body, headers=headers)
    spans = otlp.trace(trace_id, 5)
    batch = spans["batch"]
    assert (batch.parent_id, batch.is_error) == (CALLER_SPAN, True)
    assert batch.attributes["hutch.run.id"] == answer.headers["x-run-id"].split(", ")[0]
    calls = [spans["execute_tool add"], spans["execute_tool missing"]]
    assert {each.parent_id for each in calls} == {batch.span_id}
    assert {each.attributes["hutch.run.parent_id"] for each in calls} == {batch.attributes["hutch.run.id"]}
    recorded = await anna.call("GET", f"/runs/{batch.attributes['hutch.run.id']}")
    assert recorded.json()["trace_id"] == trace_id


async def test_ability_has_spans_of_requests_without_secrets(
    anna: UserClient, otlp: OtlpReceiver, traced: AbilityServer
) -> None:
    await traced.vault.put_credential(anna.user, "127.0.0.1", "header", "Authorization", f"Bearer {SECRET}")
    assert (await anna.add(requires_dynamic_headers=True)).status_code == 201
    trace_id, headers = trace_headers()
    body = {"ability_id": "twitter_get_user_profile", "params": {"username": SECRET}}
    traced.upstream.seen.clear()
    await anna.call("POST", "/my/abilities/twitter_get_user_profile/execute", json=body, headers=headers)
    spans = otlp.trace(trace_id, 3)
    request = spans["GET"]
    assert (request.kind, request.is_error) == ("client", True)
    assert request.attributes["http.response.status_code"] == 404
    assert request.attributes["server.address"] == "127.0.0.1"
    assert request.attributes["server.port"] == traced.upstream.port
    run = spans["execute_tool twitter_get_user_profile"]
    assert (request.parent_id, run.parent_id) == (run.span_id, CALLER_SPAN)
    assert SECRET not in repr(spans)
    assert "traceparent" not in traced.upstream.seen[0], "foreign hosts get no trace context by default"


async def test_permitted_host_gets_the_span_of_the_request(
    otlp: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp.url)
    tracer = await open_tracer()
    assert tracer is not None
    with FakeApi() as api:
        address = f"127.0.0.1:{api.port}"
        settings = Settings(home=str(tmp_path), egress_allow=(address,), trace_hosts=(address,))
        client = FetchClient(settings)
        session = client.open_session(HeaderInjector([], []), (), owner="anna")
        with use_context(tracer.begin("test")):
            request = FetchRequest(
                method="GET", url=f"{api.url}/users/elonmusk", headers=[("Traceparent", "00-forged")]
            )
            await session.send(request)
        await session.close()
        await client.close()
        [entry] = session.request_log
        _, trace_id, span_id, _ = api.seen[0]["traceparent"].split("-")
        assert span_id == entry.span_id
        assert len(trace_id) == 32
    await tracer.close()


async def test_flow_is_one_trace_with_its_steps_and_their_runs(anna: UserClient, otlp: OtlpReceiver) -> None:
    trace_id, headers = trace_headers()
    steps = [
        node("compute", "code.run", code="return 1 + 1"),
        node("call", "mcp.call", server="stdio", tool="trace"),
    ]
    assert (await anna.call("POST", "/flows", json=flow(steps, chain("compute", "call")))).status_code == 201
    started = await anna.call("POST", "/flows/tested/runs", json={}, headers=headers)
    assert started.status_code == 202, started.text
    spans = otlp.trace(trace_id, 5)
    run = spans["flow tested"]
    assert (run.parent_id, run.attributes["hutch.run.id"]) == (CALLER_SPAN, started.json()["run_id"])
    assert {spans["step code.run"].parent_id, spans["step mcp.call"].parent_id} == {run.span_id}
    assert spans["run quickjs"].parent_id == spans["step code.run"].span_id
    assert not any(span.is_error for span in spans.values())
    recorded = await anna.call("GET", f"/runs/{started.json()['run_id']}")
    assert recorded.json()["trace_id"] == trace_id


async def test_connected_client_passes_its_trace_on(anna: UserClient, otlp: OtlpReceiver) -> None:
    trace_id, _ = trace_headers()
    url = anna.ability_server.server.execbox
    async with hutch_api.connect(url, api_key=anna.secret) as remote:
        current.set(TraceContext(trace_id, CALLER_SPAN))
        assert (await remote.run("1 + 1")).result == 2
        current.set(None)
    assert otlp.trace(trace_id, 2)["run quickjs"].parent_id == CALLER_SPAN


async def test_unsampled_trace_is_passed_on_and_not_exported(anna: UserClient, otlp: OtlpReceiver) -> None:
    trace_id, headers = trace_headers()
    unsampled = {"traceparent": headers["traceparent"][:-1] + "0"}
    body = await run_code(anna, "return await tools.stdio.trace({})", unsampled)
    assert body["result"]["meta"].startswith(f"00-{trace_id}-")
    assert body["result"]["meta"].endswith("-00")
    later, headers = trace_headers()
    await run_code(anna, "1", headers)
    otlp.trace(later, 2)
    assert trace_id not in {span.trace_id for span in otlp.spans}


def test_endpoint_that_is_down_neither_delays_nor_fails_a_command() -> None:
    """The endpoint is port 9, on which nothing listens."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = hutch("eval", "1 + 1", env=variables)
    assert (done.returncode, done.stdout) == (0, "2\n")
    # Only Hutch's message is shown. OpenTelemetry's messages about each attempt are not shown.
    assert all("spans cannot be exported" in line for line in done.stderr.splitlines())


async def test_tracer_leaves_the_log_of_the_calling_program_alone(
    otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp.url)
    library = logging.getLogger("opentelemetry")
    # Reset the level. Commands change it, and an earlier test may have run a command in this process.
    monkeypatch.setattr(library, "level", logging.NOTSET)
    tracer = await open_tracer()
    assert tracer is not None
    await tracer.close()
    assert library.level == logging.NOTSET


def test_unsupported_protocol_is_reported_and_ignored() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    done = hutch("eval", "1 + 1", env=variables)
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: expected http/protobuf, got grpc" in done.stderr
    findings = json.loads(hutch("doctor", "--json", env=variables).stdout)["findings"]
    assert findings[-1]["name"] == "traces"
    assert findings[-1]["state"] == "weak"


async def test_lone_surrogates_of_a_span_do_not_lose_the_others(
    otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp.url)
    tracer = Tracer()
    context = tracer.begin("x")
    hostile = Span(
        name="\ud800", context=context, start=1.0, end=2.0, attributes={"label": "a\ud800"}, error="\udfff"
    )
    tracer.export([hostile, Span(name="honest", context=tracer.begin("x"), start=1.0, end=2.0)])
    await tracer.close()
    assert (tracer.counters.exported, tracer.counters.failed) == (2, 0)


async def test_endless_response_of_a_receiver_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal sent
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while sent < 100_000_000:
                    sent += self.wfile.write(b"x" * 1_000_000)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    tracer = Tracer()
    tracer.export([Span(name="x", context=tracer.begin("x"), start=1.0, end=2.0)])
    await tracer.close()
    server.shutdown()
    server.server_close()
    thread.join()
    assert (tracer.counters.exported, tracer.counters.failed) == (1, 0)
    # The server could send only a part of its answer, because the client stopped reading and the sockets'
    # buffers became full.
    assert 0 < sent < 50_000_000
