"""Kinds of steps for real: a runtime process, the real sandbox, real MCP servers, HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.flows import Ended, Runtime, chain, edge, flow, node, serving
from tests.processes import Traces, until
from tests.toolscripts import configure, stdio


class Upstream:
    """An API on loopback that answers by path."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.failures: dict[str, int] = {}
        """How often a path fails before it does not."""
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                upstream.seen.append((self.command, self.path, headers, body))
                status, kind, data = upstream.said(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            # Of connections made at once, five are usual: what is dropped comes again after seconds.
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def said(self, path: str, body: bytes) -> tuple[int, str, bytes]:
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
def upstream() -> Iterator[Upstream]:
    one = Upstream()
    yield one
    one.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flows")


@pytest.fixture(scope="module")
def runtime(environment: None, upstream: Upstream, folder: Path) -> Iterator[Runtime]:
    """One for all tests here."""
    settings = {
        "HUTCH_MCP_CONFIG": configure(folder, {"every": stdio("everything"), "github": stdio("tracker")}),
        "HUTCH_EGRESS_ALLOW": upstream.address,
        "HUTCH_APPROVALS": "every__zero=deny,github__get_issue=ask",
        "TRACE_MIND_ALLOW_SHELL": "1",
    }
    with serving(cwd=folder, **settings) as one:
        yield one


def only(runtime: Runtime, kind: str, given: dict[str, Any], **more: Any) -> Ended:
    """Runs a flow of one step, called `s`."""
    options = more.pop("options", {})
    inputs = more.pop("inputs", {})
    return runtime.run(flow([node("s", kind, **more, **given)]), inputs, **options)


# --- code.run ---


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("return input.a + 1", 2),
        ("input.b.map((n) => n * 2)", [2, 4]),
        ("const x: number = input.a; x * 5", 5),
        ("```js\nreturn input.c\n```", "é\u2028'\"\\"),
        ("\n\n```ts\nconst y: string = input.c;\nreturn y\n```\n", "é\u2028'\"\\"),
    ],
    ids=["return", "expression", "typescript", "fence", "fence-typescript"],
)
def test_code_gets_its_input_and_gives_what_it_returns(
    runtime: Runtime, engine: str, code: str, value: Any
) -> None:
    given = {"a": 1, "b": [1, 2], "c": "é\u2028'\"\\"}
    ended = only(runtime, "code.run", {"code": code, "input": "$input", "engine": engine}, inputs=given)
    assert ended.outputs == {"s": value}


def test_code_without_an_input_may_have_any_form(runtime: Runtime) -> None:
    assert only(runtime, "code.run", {"code": "async () => 7"}).outputs == {"s": 7}


def test_large_input_reaches_the_code(runtime: Runtime) -> None:
    ended = only(
        runtime,
        "code.run",
        {"code": "return input.length", "input": "$input.x"},
        inputs={"x": "é" * 2_000_000},
    )
    assert ended.outputs == {"s": 2_000_000}


def test_error_of_the_code_has_its_place_and_its_logs_are_events(runtime: Runtime) -> None:
    ended = only(
        runtime,
        "code.run",
        {"code": "console.log('here');\nthrow new TypeError('no')", "input": {"x": "y" * 99}},
    )
    assert ended.error["message"].startswith("TypeError: no (line 2, column ")
    details = ended.error["data"]["details"]
    assert (details["code"], details["line"]) == ("runtime_error", 2)
    assert "here" in ended.logs()


def test_place_on_the_first_line_is_the_authors(runtime: Runtime) -> None:
    ended = only(runtime, "code.run", {"code": "let a = 1; input.x.y", "input": {}})
    assert ended.error["message"] == "TypeError: cannot read property 'y' of undefined (line 1, column 12)"


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
def test_code_that_loops_ends_with_its_steps_time(runtime: Runtime, engine: str) -> None:
    ended = only(runtime, "code.run", {"code": "for (;;);", "engine": engine}, timeout_ms=300)
    assert ended.error["code"] == 2001
    assert "timed out" in ended.error["message"] or "took longer than its 300 ms" in ended.error["message"]


def test_code_that_loops_ends_when_the_run_is_cancelled(runtime: Runtime) -> None:
    run_id = runtime.start(flow([node("s", "code.run", code="console.log(1); for (;;);")]))
    runtime.poll_until(run_id, lambda one: one["status"] == "running", [])
    runtime.result("Cancel", run_id=run_id)
    assert runtime.ended(run_id).summary["cancelled"] is True
    assert only(runtime, "code.run", {"code": "1"}).outputs == {"s": 1}


def test_unknown_engine_is_named(runtime: Runtime) -> None:
    ended = only(runtime, "code.run", {"code": "1", "engine": "v8"}, retries=3)
    assert "unknown engine 'v8'; expected one of quickjs, deno" in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_parameter_of_the_wrong_type_is_named(runtime: Runtime) -> None:
    ended = only(runtime, "code.run", {"code": "$input.c"}, inputs={"c": 7}, retries=3)
    assert ended.error["message"] == "with.code: expected a string, got the number 7"


# --- http ---


def test_get_gives_status_headers_and_json(runtime: Runtime, upstream: Upstream) -> None:
    given = {"url": upstream.url("/a?x=1"), "headers": {"x-one": "1"}, "query": {"y": ["a b", 2], "z": None}}
    output = only(runtime, "http.get", given).outputs["s"]
    assert (output["status"], output["body"]) == (200, {"path": "/a?x=1&y=a+b&y=2"})
    assert output["headers"]["content-type"] == "application/json"
    assert upstream.seen[-1][2]["x-one"] == "1"


def test_text_and_other_bytes_are_told_apart(runtime: Runtime, upstream: Upstream) -> None:
    assert only(runtime, "http.get", {"url": upstream.url("/text")}).outputs["s"]["body"] == "é"
    binary = only(runtime, "http.get", {"url": upstream.url("/binary")}).outputs["s"]
    assert (binary["body"], binary["encoding"]) == ("/wA=", "base64")


@pytest.mark.parametrize(
    ("body", "kind", "sent"),
    [
        ({"a": "$input.n"}, "application/json", b'{"a":5}'),
        ([1], "application/json", b"[1]"),
        ("text", "text/plain;charset=UTF-8", b"text"),
    ],
)
def test_request_sends_its_body(
    runtime: Runtime, upstream: Upstream, body: Any, kind: str, sent: bytes
) -> None:
    given = {"method": "post", "url": upstream.url("/echo"), "body": body}
    output = only(runtime, "http.request", given, inputs={"n": 5}).outputs["s"]
    assert output["body"] == (json.loads(sent) if body != "text" else "text")
    method, _, headers, came = upstream.seen[-1]
    assert (method, headers["content-type"], came) == ("POST", kind, sent)


def test_status_of_400_and_above_fails_the_step(runtime: Runtime, upstream: Upstream) -> None:
    ended = only(runtime, "http.get", {"url": upstream.url("/missing")}, retries=2)
    assert ended.error["message"] == f"GET {upstream.url('/missing')} was answered with 404."
    details = ended.error["data"]["details"]
    assert (details["status"], details["body"]) == (404, '{"message":"no such thing"}')
    assert [each[1] for each in upstream.seen].count("/missing") == 1


def test_upstream_that_comes_back_is_asked_again(runtime: Runtime, upstream: Upstream) -> None:
    upstream.failures["/later"] = 2
    ended = only(runtime, "http.get", {"url": upstream.url("/later")}, retries=3, backoff_ms=1)
    assert ended.outputs["s"]["status"] == 200
    assert [each["attempt"] for each in ended.events if each.get("state") == "started"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/", "egress_http_hosts"),
        ("https://127.0.0.1:1/", "egress_allow"),
        ("https://169.254.169.254/latest/", "egress_allow"),
        ("nonsense", "expected https://host/path"),
        ("file:///etc/passwd", "http"),
    ],
)
def test_what_may_not_be_reached_is_refused_once(runtime: Runtime, url: str, message: str) -> None:
    ended = only(runtime, "http.get", {"url": url}, retries=3)
    assert message in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_run_may_be_allowed_more(runtime: Runtime) -> None:
    other = Upstream()
    try:
        refused = only(runtime, "http.get", {"url": other.url("/a")})
        allowed = only(
            runtime, "http.get", {"url": other.url("/a")}, options={"egress_allow": [other.address]}
        )
    finally:
        other.close()
    assert (refused.status, allowed.status) == ("failed", "completed")


def test_two_hundred_requests_run_fifty_at_a_time(runtime: Runtime, upstream: Upstream) -> None:
    """0.8 s is the promise; `make bench` measures it."""
    nodes = [node(f"s{number}", "http.get", url=upstream.url("/slow")) for number in range(200)]
    began = time.monotonic()
    ended = runtime.run(flow([*nodes, node("end", "finish", outputs=1)]), concurrency=50)
    assert (ended.outputs, ended.summary["completed_steps"]) == (1, 201)
    assert 0.4 <= time.monotonic() - began < 20


# --- mcp.call ---


def test_mcp_tool_is_called(runtime: Runtime) -> None:
    given = {"server": "github", "tool": "create_issue", "arguments": {"title": "$input.t"}}
    assert only(runtime, "mcp.call", given, inputs={"t": "Hi"}).outputs["s"]["title"] == "Hi"


@pytest.mark.parametrize(
    ("server", "tool", "message"),
    [
        ("nobody", "x", "There is no tool nobody__x"),
        ("github", "create_isue", "Did you mean github__create_issue"),
        ("every", "zero", "The policy denies every__zero"),
    ],
)
def test_mcp_tool_that_cannot_be_called_is_not_tried_again(
    runtime: Runtime, server: str, tool: str, message: str
) -> None:
    ended = only(runtime, "mcp.call", {"server": server, "tool": tool}, retries=3)
    assert message in ended.error["message"]
    assert ended.error["data"]["attempt"] == 0


def test_mcp_tool_that_fails_is_tried_again(runtime: Runtime) -> None:
    ended = only(runtime, "mcp.call", {"server": "every", "tool": "fail", "arguments": {}}, retries=1)
    data = ended.error["data"]
    assert (data["attempt"], data["details"]["kind"]) == (1, "tool_error")


@pytest.mark.parametrize("approved", [True, False])
def test_tool_that_the_rules_want_asked_about_is_asked_as_the_steps_approval(
    runtime: Runtime, approved: bool
) -> None:
    made = only(
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


# --- toolscript.run ---


def test_toolscript_is_checked_and_run(runtime: Runtime) -> None:
    code = (
        'import { tools } from "toolscript";\nconsole.log("from the script");\n'
        'return (await tools.github.createIssue({ title: "scripted" })).title;'
    )
    ended = only(runtime, "toolscript.run", {"code": code})
    assert ended.outputs == {"s": "scripted"}
    assert "from the script" in ended.logs()
    wrong = only(runtime, "toolscript.run", {"code": code.replace("title:", "tile:")}, retries=2)
    assert "tile" in wrong.error["message"]
    assert wrong.error["data"]["details"]["problems"][0]["line"] == 3


def test_toolscript_of_a_file_is_found_from_the_runs_folder(runtime: Runtime, folder: Path) -> None:
    (folder / "script.ts").write_text("const n: number = 4; console.error(n); Deno.exit(3);")
    ended = only(runtime, "toolscript.run", {"file": "script.ts", "check": False})
    assert ended.error["data"]["details"]["exit_code"] == 3
    forbidden = only(runtime, "toolscript.run", {"file": "script.ts"}, options={"files": False})
    assert forbidden.error["message"] == "file: this run may name no files; expected code"


def test_toolscript_wants_one_of_code_and_file(runtime: Runtime) -> None:
    assert only(runtime, "toolscript.run", {}).error["message"] == "with: expected either code or file"


# --- shell.run ---


def shell(runtime: Runtime, command: str, args: list[str] | None = None, **more: Any) -> Ended:
    given = {"command": command} if args is None else {"command": command, "args": args}
    return only(runtime, "shell.run", given, options={"allow_shell": True}, **more)


def test_shell_runs_lines_and_programs(runtime: Runtime) -> None:
    line = shell(runtime, "echo one | tr a-z A-Z; echo two >&2").outputs["s"]
    assert line == {"exit_code": 0, "stdout": "ONE\n", "stderr": "two\n"}
    assert shell(runtime, "printf", ["%s-%s", "$HOME", "b c"]).outputs["s"]["stdout"] == "$HOME-b c"


def test_shell_sees_nothing_of_the_host_but_usr(runtime: Runtime, folder: Path) -> None:
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


def test_shell_has_no_network(runtime: Runtime, upstream: Upstream) -> None:
    host, _, port = upstream.address.partition(":")
    ended = shell(runtime, "bash", ["-c", f"exec 3<>/dev/tcp/{host}/{port}"])
    assert ended.error["data"]["details"]["exit_code"] != 0
    assert "refused" in ended.error["data"]["details"]["stderr"] or "nreachable" in ended.error["message"]


def test_exit_code_of_the_shell_fails_the_step(runtime: Runtime) -> None:
    ended = shell(runtime, "echo why >&2; exit 7")
    assert ended.error["message"] == "echo why >&2; exit 7 ended with exit code 7: why"
    assert ended.error["data"]["details"] == {"exit_code": 7, "stdout": "", "stderr": "why\n"}


def test_shell_that_takes_too_long_is_ended_with_all_it_started(runtime: Runtime) -> None:
    with Traces(runtime.process.pid) as before:
        ended = shell(runtime, "sleep 600 & sleep 600", timeout_ms=300)
        assert ended.error["data"]["cause"] == "Timeout"

        def left() -> int:
            with Traces(runtime.process.pid) as now:
                return now.processes - before.processes

        until(lambda: left() <= 0)


def test_what_the_shell_prints_is_bounded(runtime: Runtime) -> None:
    ended = shell(runtime, "head -c 5000000 /dev/zero | tr '\\0' x")
    assert len(ended.outputs["s"]["stdout"]) == 1024 * 1024
    assert ended.outputs["s"]["truncated"] is True


# --- several together ---


def test_kinds_work_together(runtime: Runtime, upstream: Upstream) -> None:
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


def test_nothing_of_all_this_was_complained_of(runtime: Runtime) -> None:
    """Last: what the runtime has said on stderr, and how it ends."""
    assert runtime.close() == b""
    assert runtime.process.wait(10) == 0
    assert runtime.process.stderr is not None
    assert runtime.process.stderr.read() == b""
