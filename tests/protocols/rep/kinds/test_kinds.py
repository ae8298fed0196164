"""Step kinds in a real runtime process: the sandbox, MCP servers, and HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.flows import PolledRun, StdioRuntime, chain, edge, flow, node, running_runtime
from tests.support.processes import Traces, wait_until
from tests.support.toolscripts import configure, stdio


class FakeApi:
    """An API on loopback whose response depends on the path."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.failures: dict[str, int] = {}
        """Number of failures left per path."""
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                upstream.seen.append((self.command, self.path, headers, body))
                status, kind, data = upstream.response(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            # The default backlog of 5 is too small. If a connection is dropped, the client repeats it only
            # after seconds.
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def response(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        bare = path.partition("?")[0]
        if self.failures.get(bare, 0) > 0:
            self.failures[bare] -= 1
            return 503, "text/plain", b"not now"
        match bare:
            case "/text":
                return 200, "text/plain; charset=utf-8", "é".encode()
            case "/binary":
                return 200, "application/octet-stream", b"\xff\x00"
            case "/missing":
                return 404, "application/json", b'{"message":"no such thing"}'
            case "/echo":
                return 200, "application/json", body or b"null"
            case "/slow":
                time.sleep(0.1)
                return 200, "application/json", b"1"
            case _:
                return 200, "application/json", json.dumps({"path": path}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flows")


@pytest.fixture(scope="module")
def runtime(environment: None, upstream: FakeApi, folder: Path) -> Iterator[StdioRuntime]:
    """One runtime process for all tests of this file."""
    settings = {
        "HUTCH_MCP_CONFIG": configure(folder, {"every": stdio("everything"), "github": stdio("tracker")}),
        "HUTCH_EGRESS_ALLOW": upstream.address,
        "HUTCH_APPROVALS": "every__zero=deny,github__get_issue=ask",
        "TRACE_MIND_ALLOW_SHELL": "1",
    }
    with running_runtime(cwd=folder, **settings) as process:
        yield process


def run_step(runtime: StdioRuntime, kind: str, params: dict[str, Any], **more: Any) -> PolledRun:
    """Runs a flow with the single step `s`."""
    options = more.pop("options", {})
    inputs = more.pop("inputs", {})
    return runtime.run(flow([node("s", kind, **more, **params)]), inputs, **options)


# --- code.run ---


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("return input.a + 1", 2),
        ("input.b.map((n) => n * 2)", [2, 4]),
        ("async () => input.a", 1),
        ("const x: number = input.a; x * 5", 5),
        ("```js\nreturn input.c\n```", "é\u2028'\"\\"),
        ("\n\n```ts\nconst y: string = input.c;\nreturn y\n```\n", "é\u2028'\"\\"),
    ],
    ids=["return", "expression", "function", "typescript", "fence", "fence-typescript"],
)
def test_code_gets_its_input_and_returns_its_result(
    runtime: StdioRuntime, engine: str, code: str, value: Any
) -> None:
    params = {"a": 1, "b": [1, 2], "c": "é\u2028'\"\\"}
    ended = run_step(runtime, "code.run", {"code": code, "input": "$input", "engine": engine}, inputs=params)
    assert ended.outputs == {"s": value}


def test_code_without_input_may_have_any_form(runtime: StdioRuntime) -> None:
    assert run_step(runtime, "code.run", {"code": "async () => 7"}).outputs == {"s": 7}


def test_large_input_reaches_the_code(runtime: StdioRuntime) -> None:
    ended = run_step(
        runtime,
        "code.run",
        {"code": "return input.length", "input": "$input.x"},
        inputs={"x": "é" * 2_000_000},
    )
    assert ended.outputs == {"s": 2_000_000}


def test_code_error_has_a_position_and_logs_are_events(runtime: StdioRuntime) -> None:
    ended = run_step(
        runtime,
        "code.run",
        {"code": "console.log('here');\nthrow new TypeError('no')", "input": {"x": "y" * 99}},
    )
    assert ended.error["message"].startswith("TypeError: no (line 2, column ")
    details = ended.error["data"]["details"]
    assert (details["code"], details["line"]) == ("runtime_error", 2)
    assert "here" in ended.logs()


def test_log_lines_of_code_are_events_while_it_runs(runtime: StdioRuntime) -> None:
    code = "console.log('first'); await new Promise((end) => setTimeout(end, 500)); return Date.now() / 1000"
    ended = run_step(runtime, "code.run", {"code": code})
    [logged] = [event["timestamp"] for event in ended.events if event["type"] == "log"]
    assert datetime.fromisoformat(logged).timestamp() < ended.outputs["s"]


def test_position_on_the_first_line_ignores_the_prefix(runtime: StdioRuntime) -> None:
    ended = run_step(runtime, "code.run", {"code": "let a = 1; input.x.y", "input": {}})
    assert ended.error["message"] == "TypeError: cannot read property 'y' of undefined (line 1, column 12)"


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
def test_endless_code_ends_with_the_step_timeout(runtime: StdioRuntime, engine: str) -> None:
    ended = run_step(runtime, "code.run", {"code": "for (;;);", "engine": engine}, timeout_ms=300)
    assert ended.error["code"] == 2001
    assert "timed out" in ended.error["message"] or "took longer than its 300 ms" in ended.error["message"]


def test_endless_code_ends_when_the_run_is_cancelled(runtime: StdioRuntime) -> None:
    run_id = runtime.start(flow([node("s", "code.run", code="console.log(1); for (;;);")]))
    runtime.poll_until(run_id, lambda state: state["status"] == "running", [])
    runtime.result("Cancel", run_id=run_id)
    assert runtime.ended(run_id).summary["cancelled"] is True
    assert run_step(runtime, "code.run", {"code": "1"}).outputs == {"s": 1}


def test_unknown_engine_is_reported_without_retry(runtime: StdioRuntime) -> None:
    ended = run_step(runtime, "code.run", {"code": "1", "engine": "v8"}, retries=3)
    assert "unknown engine 'v8'; expected one of quickjs, deno" in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_parameter_of_wrong_type_is_reported(runtime: StdioRuntime) -> None:
    ended = run_step(runtime, "code.run", {"code": "$input.c"}, inputs={"c": 7}, retries=3)
    assert ended.error["message"] == "with.code: expected a string, got the number 7"


# --- http ---


def test_http_get_returns_status_headers_and_json(runtime: StdioRuntime, upstream: FakeApi) -> None:
    params = {"url": upstream.url("/a?x=1"), "headers": {"x-one": "1"}, "query": {"y": ["a b", 2], "z": None}}
    output = run_step(runtime, "http.get", params).outputs["s"]
    assert (output["status"], output["body"]) == (200, {"path": "/a?x=1&y=a+b&y=2"})
    assert output["headers"]["content-type"] == "application/json"
    assert upstream.seen[-1][2]["x-one"] == "1"


def test_text_and_binary_bodies_are_distinguished(runtime: StdioRuntime, upstream: FakeApi) -> None:
    assert run_step(runtime, "http.get", {"url": upstream.url("/text")}).outputs["s"]["body"] == "é"
    binary = run_step(runtime, "http.get", {"url": upstream.url("/binary")}).outputs["s"]
    assert (binary["body"], binary["encoding"]) == ("/wA=", "base64")


@pytest.mark.parametrize(
    ("body", "kind", "sent"),
    [
        ({"a": "$input.n"}, "application/json", b'{"a":5}'),
        ([1], "application/json", b"[1]"),
        ("text", "text/plain;charset=UTF-8", b"text"),
    ],
)
def test_http_request_sends_its_body(
    runtime: StdioRuntime, upstream: FakeApi, body: Any, kind: str, sent: bytes
) -> None:
    params = {"method": "post", "url": upstream.url("/echo"), "body": body}
    output = run_step(runtime, "http.request", params, inputs={"n": 5}).outputs["s"]
    assert output["body"] == (json.loads(sent) if body != "text" else "text")
    method, _, headers, sent_body = upstream.seen[-1]
    assert (method, headers["content-type"], sent_body) == ("POST", kind, sent)


def test_error_status_fails_the_step(runtime: StdioRuntime, upstream: FakeApi) -> None:
    ended = run_step(runtime, "http.get", {"url": upstream.url("/missing")}, retries=2)
    assert ended.error["message"] == f"GET {upstream.url('/missing')} was answered with 404."
    details = ended.error["data"]["details"]
    assert (details["status"], details["body"]) == (404, '{"message":"no such thing"}')
    assert [each[1] for each in upstream.seen].count("/missing") == 1


def test_recovering_api_is_retried(runtime: StdioRuntime, upstream: FakeApi) -> None:
    upstream.failures["/later"] = 2
    ended = run_step(runtime, "http.get", {"url": upstream.url("/later")}, retries=3, backoff_ms=1)
    assert ended.outputs["s"]["status"] == 200
    assert [each["attempt"] for each in ended.events if each.get("state") == "started"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/", "egress_http_hosts"),
        ("https://127.0.0.1:1/", "egress_allow"),
        ("https://169.254.169.254/latest/", "egress_allow"),
        ("garbage", "expected https://host/path"),
        ("file:///etc/passwd", "http"),
    ],
)
def test_forbidden_url_is_refused_without_retry(runtime: StdioRuntime, url: str, message: str) -> None:
    ended = run_step(runtime, "http.get", {"url": url}, retries=3)
    assert message in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_run_option_extends_the_egress_rules(runtime: StdioRuntime) -> None:
    other = FakeApi()
    try:
        refused = run_step(runtime, "http.get", {"url": other.url("/a")})
        allowed = run_step(
            runtime, "http.get", {"url": other.url("/a")}, options={"egress_allow": [other.address]}
        )
    finally:
        other.close()
    assert (refused.status, allowed.status) == ("failed", "completed")


def test_two_hundred_requests_run_fifty_at_a_time(runtime: StdioRuntime, upstream: FakeApi) -> None:
    """The target is 0.8 s, which `make bench` measures."""
    nodes = [node(f"s{number}", "http.get", url=upstream.url("/slow")) for number in range(200)]
    began = time.monotonic()
    ended = runtime.run(flow([*nodes, node("end", "finish", outputs=1)]), concurrency=50)
    assert (ended.outputs, ended.summary["completed_steps"]) == (1, 201)
    assert 0.4 <= time.monotonic() - began < 20


# --- mcp.call ---


def test_mcp_tool_is_called(runtime: StdioRuntime) -> None:
    params = {"server": "github", "tool": "create_issue", "arguments": {"title": "$input.t"}}
    assert run_step(runtime, "mcp.call", params, inputs={"t": "Hi"}).outputs["s"]["title"] == "Hi"


@pytest.mark.parametrize(
    ("server", "tool", "message"),
    [
        ("unknown", "x", "There is no tool unknown__x"),
        ("github", "create_isue", "Did you mean github__create_issue"),
        ("every", "zero", "The policy denies every__zero"),
    ],
)
def test_uncallable_mcp_tool_is_not_retried(
    runtime: StdioRuntime, server: str, tool: str, message: str
) -> None:
    ended = run_step(runtime, "mcp.call", {"server": server, "tool": tool}, retries=3)
    assert message in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_failing_mcp_tool_is_retried(runtime: StdioRuntime) -> None:
    ended = run_step(runtime, "mcp.call", {"server": "every", "tool": "fail", "arguments": {}}, retries=1)
    data = ended.error["data"]
    assert (data["attempt"], data["details"]["kind"]) == (1, "tool_error")


@pytest.mark.parametrize("approved", [True, False])
def test_approval_rule_for_a_tool_asks_through_the_step(runtime: StdioRuntime, approved: bool) -> None:
    made = run_step(
        runtime, "mcp.call", {"server": "github", "tool": "create_issue", "arguments": {"title": "x"}}
    )
    arguments = {"number": made.outputs["s"]["number"]}
    run_id = runtime.start(
        flow([node("s", "mcp.call", server="github", tool="get_issue", arguments=arguments)])
    )
    events: list[dict[str, Any]] = []
    runtime.poll_until(run_id, lambda _: any(each["type"] == "approval" for each in events), events)
    [asked] = [each["message"] for each in events if each["type"] == "approval"]
    assert asked.startswith('Call github__get_issue with {"number":')
    runtime.result("Approve", run_id=run_id, step_id="s", approved=approved)
    ended = runtime.ended(run_id)
    if approved:
        assert ended.outputs["s"]["title"] == "x"
    else:
        assert "The call of github__get_issue was denied" in ended.error["message"]


def test_code_calls_tools_only_with_the_right_to_call_them(runtime: StdioRuntime) -> None:
    params = {"code": "return (await tools.github.createIssue({title: 'x'})).title", "tools": ["github"]}
    for engine in ("quickjs", "deno"):
        assert run_step(runtime, "code.run", {**params, "engine": engine}).outputs == {"s": "x"}
    refused = run_step(runtime, "code.run", params, options={"kinds": ["code.run"]})
    assert refused.error["message"].startswith("tools: this run may not call tools of MCP servers")
    without = run_step(runtime, "code.run", {"code": "return typeof tools"})
    assert without.outputs == {"s": "undefined"}


# --- toolscript.run ---


def test_toolscript_is_checked_and_run(runtime: StdioRuntime) -> None:
    code = (
        'import { tools } from "toolscript";\nconsole.log("from the script");\n'
        'return (await tools.github.createIssue({ title: "scripted" })).title;'
    )
    ended = run_step(runtime, "toolscript.run", {"code": code})
    assert ended.outputs == {"s": "scripted"}
    assert "from the script" in ended.logs()
    wrong = run_step(runtime, "toolscript.run", {"code": code.replace("title:", "tile:")}, retries=2)
    assert "tile" in wrong.error["message"]
    assert wrong.error["data"]["details"]["problems"][0]["line"] == 3


def test_toolscript_file_is_relative_to_the_folder_of_the_run(runtime: StdioRuntime, folder: Path) -> None:
    (folder / "script.ts").write_text("const n: number = 4; console.error(n); Deno.exit(3);")
    ended = run_step(runtime, "toolscript.run", {"file": "script.ts", "check": False})
    assert ended.error["data"]["details"]["exit_code"] == 3
    forbidden = run_step(runtime, "toolscript.run", {"file": "script.ts"}, options={"files": False})
    assert forbidden.error["message"] == "file: this run may not read files; use code instead"


def test_toolscript_needs_either_code_or_file(runtime: StdioRuntime) -> None:
    assert run_step(runtime, "toolscript.run", {}).error["message"] == "with: expected either code or file"


# --- shell.run ---


def shell(runtime: StdioRuntime, command: str, args: list[str] | None = None, **more: Any) -> PolledRun:
    params = {"command": command} if args is None else {"command": command, "args": args}
    return run_step(runtime, "shell.run", params, options={"allow_shell": True}, **more)


def test_shell_runs_command_lines_and_programs(runtime: StdioRuntime) -> None:
    line = shell(runtime, "echo one | tr a-z A-Z; echo two >&2").outputs["s"]
    assert line == {"exit_code": 0, "stdout": "ONE\n", "stderr": "two\n"}
    assert shell(runtime, "printf", ["%s-%s", "$HOME", "b c"]).outputs["s"]["stdout"] == "$HOME-b c"


def test_shell_sees_only_usr_of_the_host(runtime: StdioRuntime, folder: Path) -> None:
    (folder / "secret").write_text("secret")
    look = f"cat {folder}/secret /etc/passwd; ls /home /root; env; id -u"
    ended = shell(runtime, f"{look}; touch /usr/x /x; echo ok > /tmp/y; cat /tmp/y").outputs["s"]
    assert "secret" not in ended["stdout"]
    assert "HUTCH_" not in ended["stdout"]
    assert "TRACE_MIND" not in ended["stdout"]
    assert "65534" in ended["stdout"]
    assert ended["stderr"].count("Read-only file system") == 2
    assert ended["stdout"].endswith("ok\n")
    assert not Path("/usr/x").exists()


def test_shell_has_no_network(runtime: StdioRuntime, upstream: FakeApi) -> None:
    host, _, port = upstream.address.partition(":")
    ended = shell(runtime, "bash", ["-c", f"exec 3<>/dev/tcp/{host}/{port}"])
    assert ended.error["data"]["details"]["exit_code"] != 0
    assert "refused" in ended.error["data"]["details"]["stderr"] or "nreachable" in ended.error["message"]


def test_shell_exit_code_fails_the_step(runtime: StdioRuntime) -> None:
    ended = shell(runtime, "echo why >&2; exit 7")
    assert ended.error["message"] == "echo why >&2; exit 7 ended with exit code 7: why"
    assert ended.error["data"]["details"] == {"exit_code": 7, "stdout": "", "stderr": "why\n"}


def test_shell_signals_only_processes_in_the_jail(runtime: StdioRuntime) -> None:
    """`kill 0` signals the process group, to which bubblewrap must not belong."""
    ended = shell(runtime, "trap '' TERM; kill -TERM 0; echo survived").outputs["s"]
    assert (ended["exit_code"], ended["stdout"]) == (0, "survived\n")


def test_shell_timeout_kills_all_descendants(runtime: StdioRuntime) -> None:
    with Traces(runtime.process.pid) as before:
        ended = shell(runtime, "sleep 600 & sleep 600", timeout_ms=300)
        assert ended.error["data"]["cause"] == "Timeout"

        def left() -> int:
            with Traces(runtime.process.pid) as now:
                return now.processes - before.processes

        wait_until(lambda: left() <= 0)


def test_shell_output_is_bounded(runtime: StdioRuntime) -> None:
    ended = shell(runtime, "head -c 5000000 /dev/zero | tr '\\0' x")
    assert len(ended.outputs["s"]["stdout"]) == 1024 * 1024
    assert ended.outputs["s"]["truncated"] is True


# --- several together ---


def test_kinds_work_together(runtime: StdioRuntime, upstream: FakeApi) -> None:
    upstream.failures["/flaky"] = 1
    nodes = [
        node("fetch", "http.get", retries=2, url=upstream.url("/flaky")),
        node("count", "code.run", code="return { n: input.path.length }", input="$step.fetch.body"),
        node("file", "mcp.call", server="github", tool="create_issue", arguments={"title": "$input.title"}),
        node("way", "switch", key_from="$step.count.n", cases={"6": "good", "_DEFAULT": "bad"}),
        node("good", "finish", outputs={"n": "$step.count.n", "title": "$step.file.title"}),
        node("bad", "finish", outputs={"n": -1}),
    ]
    edges = [
        *chain("fetch", "count", "file", "way"),
        edge("way", "good", case="6"),
        edge("way", "bad", case="_DEFAULT"),
    ]
    assert runtime.run(flow(nodes, edges), {"title": "T"}).outputs == {"n": 6, "title": "T"}


def test_runtime_wrote_nothing_to_stderr(runtime: StdioRuntime) -> None:
    """Ends the shared runtime and checks its stderr and exit code, so this test must be the last one."""
    assert runtime.close() == b""
    assert runtime.process.wait(10) == 0
    assert runtime.process.stderr is not None
    assert runtime.process.stderr.read() == b""
