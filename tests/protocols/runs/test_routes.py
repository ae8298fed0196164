"""`/runs` of a real server: list, details, events, cancellation, replay, and access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.http.execbox_client import ExecboxClient, connect_execbox
from tests.support.flows import flow, node
from tests.support.messages import execute, tool_result
from tests.support.openapi import OpenApiChecker
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, hutch, running_server, wait_until

OPERATOR = "operator-key-operator-key"
CODE = "console.log('begin');\nconst x = await tools.add({a: 1});\nreturn x + n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServeProcess]:
    with running_server(
        HUTCH_HOME=str(home),
        HUTCH_API_KEY=OPERATOR,
        HUTCH_RECORD_PROTOCOLS="execbox=full",
        HUTCH_MAX_RECORD_BYTES="100000",
    ) as running:
        yield running


@pytest.fixture
async def operator(server: ServeProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(server, OPERATOR) as client:
        yield client


@pytest.fixture
async def execbox(server: ServeProcess) -> AsyncIterator[ExecboxClient]:
    async with connect_execbox(server.execbox, Authorization=f"Bearer {OPERATOR}") as client:
        yield client


def client_of(server: ServeProcess, key: str) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_SECONDS)


def add_user(home: Path, name: str, *scopes: str) -> str:
    env = {"HUTCH_HOME": str(home)}
    hutch("user", "add", name, env=env)
    options = [option for scope in scopes for option in ("--scope", scope)]
    return hutch("key", "add", name, *options, env=env).stdout.split()[-1].strip()


async def run(execbox: ExecboxClient, id: str, code: str, answer: Any = None, **options: Any) -> None:
    await execbox.send({**execute(id, code, tools=("add",), **options), "inputs": {"n": 4}})
    await execbox.started(id)
    if answer is not None:
        await execbox.send(tool_result(await execbox.call(id), answer))
    await execbox.end(id)


async def newest(client: httpx2.AsyncClient, **filters: str) -> dict[str, Any]:
    entry: dict[str, Any] = (await client.get("/runs", params={"limit": "1", **filters})).json()["runs"][0]
    return entry


async def test_run_is_recorded_with_code_values_calls_and_times(
    operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    await run(execbox, "a", CODE, 6)
    entry = await newest(operator)
    assert (entry["status"], entry["protocol"], entry["owner"]) == ("completed", "execbox", "key")
    assert entry["state"] == "completed"
    response = await operator.get(f"/runs/{entry['run_id']}")
    detail = response.json()
    assert (detail["code"], detail["inputs"], detail["output"]) == (CODE, {"n": 4}, 10)
    [call] = detail["tool_calls"]
    assert (call["provider"], call["tool"], call["input"], call["output"]) == ("tools", "add", {"a": 1}, 6)
    assert call["line"] == 2
    assert 0 <= call["start_ms"] <= detail["duration_ms"] + 1_000
    assert [log["line"] for log in detail["logs"]] == ["begin"]
    assert detail["created_at"] <= detail["started_at"] <= detail["ended_at"]
    assert len(detail["code_hash"]) == 64
    assert detail["replay"]["recorded"] is True
    found = await operator.get("/runs", params={"tool": "tools.add", "status": "completed"})
    assert entry["run_id"] in [each["run_id"] for each in found.json()["runs"]]
    api = OpenApiChecker((await operator.get("/openapi.json")).json())
    api.check_response("GET", "/runs/{id}", response)
    api.check_response("GET", "/runs", found)


async def test_events_of_a_run_are_sent_live_and_again_from_the_record(
    operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    await execbox.send({**execute("e", CODE, tools=("add",)), "inputs": {"n": 4}})
    await execbox.started("e")
    call = await execbox.call("e")
    entry = await newest(operator, status="running")
    names = []
    async with operator.stream("GET", f"/runs/{entry['run_id']}/events") as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
                if names[-1] == "tool_call_started":
                    await execbox.send(tool_result(call, 1))
    expected = ["queued", "started", "log", "tool_call_started", "tool_call_ended", "end"]
    assert names == expected
    again = (await operator.get(f"/runs/{entry['run_id']}/events")).text
    assert [line[7:] for line in again.splitlines() if line.startswith("event: ")] == expected
    rest = (await operator.get(f"/runs/{entry['run_id']}/events", headers={"Last-Event-ID": "5"})).text
    assert [line[7:] for line in rest.splitlines() if line.startswith("event: ")] == ["end"]
    last = json.loads(again.rpartition("data: ")[2])
    assert (last["type"], last["status"], last["outcome"]) == ("end", "completed", "ok")


async def test_files_of_a_run_are_recorded_and_returned(operator: httpx2.AsyncClient) -> None:
    long = "await files.write('long.txt', 'x'.repeat(90_000));"
    code = f"await files.write('a.csv', 'x,y'); {long} display({{b: 1}})"
    run_id = (await operator.post("/run", json={"code": code})).json()["run_id"]
    response = await operator.get(f"/runs/{run_id}")
    OpenApiChecker((await operator.get("/openapi.json")).json()).check_response("GET", "/runs/{id}", response)
    files = {file["name"]: (file["size"], file["recorded"]) for file in response.json()["files"]}
    # Code, values and files together may take only half of `max_record_bytes`, so long.txt is not recorded.
    assert files == {"a.csv": (3, True), "long.txt": (90_000, False), "display-1.json": (7, True)}
    assert (await operator.get(f"/runs/{run_id}/files/a.csv")).content == b"x,y"
    assert (await operator.get(f"/runs/{run_id}/files/long.txt")).status_code == 404
    less = (await operator.post("/run", json={"code": code, "record": "errors"})).json()["run_id"]
    assert "files" not in (await operator.get(f"/runs/{less}")).json()


@pytest.mark.parametrize("level", ["metadata", "errors"])
async def test_logs_are_followed_live_also_if_they_are_not_recorded(
    server: ServeProcess, operator: httpx2.AsyncClient, level: str
) -> None:
    code = "console.log('early'); setInterval(() => console.log('tick'), 20); await new Promise(() => {})"
    body = {"code": code, "record": level, "label": f"logs with {level}", "limits": {"timeout_ms": 60_000}}
    running = asyncio.create_task(operator.post("/run", json=body))
    headers = dict(operator.headers)
    listed = partial(httpx2.get, f"{server.url}/runs", params={"label": body["label"]}, headers=headers)
    await asyncio.to_thread(wait_until, lambda: listed().json()["runs"])
    run_id = (await newest(operator, label=f"logs with {level}"))["run_id"]
    lines = []
    async with operator.stream("GET", f"/runs/{run_id}/events") as response:
        async for line in response.aiter_lines():
            if line.startswith('data: {"type":"log"'):
                lines.append(json.loads(line[6:])["line"])
                if lines[-1] == "tick":
                    await operator.post(f"/runs/{run_id}/cancel")
    await running
    assert lines[:2] == ["early", "tick"]
    stored = (await operator.get(f"/runs/{run_id}")).json()
    assert stored["outcome"] == "cancelled"
    assert ("logs" in stored) == (level == "errors")
    assert "early" not in (await operator.get(f"/runs/{run_id}/events")).text or level == "errors"


async def test_output_of_a_failed_script_is_recorded_as_its_log(
    server: ServeProcess, operator: httpx2.AsyncClient
) -> None:
    request = {"code": "console.log('one');\nconsole.error('two');\nDeno.exit(3);"}
    body = {"async": True, "kind": "script", "request": request}
    run_id = (await operator.post("/runs", json=body)).json()["runId"]
    shown = partial(httpx2.get, f"{server.url}/runs/{run_id}", headers=dict(operator.headers))
    await asyncio.to_thread(wait_until, lambda: shown().json()["status"] == "failed")
    run = shown().json()
    assert (run["outcome"], run["log_lines"], run["recorded"]) == ("script_failed", 2, "errors")
    assert sorted(log["line"] for log in run["logs"]) == ["one", "two"]


async def test_cancel_stops_a_run_and_its_outcome_says_so(
    operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    await execbox.send(execute("c", "for (;;);", timeoutMs=60_000))
    await execbox.started("c")
    entry = await newest(operator, status="running")
    assert (entry["outcome"], entry["duration_ms"]) == (None, None)
    assert (await operator.post(f"/runs/{entry['run_id']}/cancel")).json()["ok"] is True
    await execbox.end("c")
    ended = (await operator.get(f"/runs/{entry['run_id']}")).json()
    assert (ended["state"], ended["status"], ended["outcome"]) == ("cancelled", "failed", "cancelled")
    again = await operator.post(f"/runs/{entry['run_id']}/cancel")
    assert (again.status_code, again.json()["error"]["message"]) == (
        409,
        f"Run {entry['run_id']!r} has ended",
    )


async def test_replay_answers_calls_from_the_record_and_names_the_call_that_differs(
    operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    await run(execbox, "r", CODE, 6)
    path = f"/runs/{(await newest(operator))['run_id']}/replay"
    same = (await operator.post(f"{path}?wait=true", json={"mode": "recorded"})).json()
    assert (same["outcome"], same["output"], same["parent_run_id"]) == ("ok", 10, path.split("/")[2])
    other = (await operator.post(f"{path}?wait=true", json={"inputs": {"n": 5}})).json()
    assert other["output"] == 11
    code = "return await tools.add({a: 2}).catch(() => 'caught')"
    diverged = (await operator.post(f"{path}?wait=true", json={"code": code})).json()
    assert diverged["outcome"] == "replay_diverged"
    assert 'Call 1, tools.add, is not in the record: it has the input {"a":2}' in diverged["error"]["message"]
    started = await operator.post(path, json={"mode": "recorded"})
    assert (started.status_code, started.headers["x-run-id"]) == (202, started.json()["run_id"])
    refused = await operator.post(path, json={"mode": "same"})
    assert (refused.status_code, "client" in refused.json()["error"]["message"]) == (409, True)
    wrong = await operator.post(path, json={"mode": "other"})
    assert wrong.status_code == 400


async def test_replay_of_a_failed_run_without_contents_names_the_setting(
    operator: httpx2.AsyncClient,
) -> None:
    body = {"code": "throw new Error('no')", "record": "errors"}
    run_id = (await operator.post("/run", json=body)).headers["x-run-id"]
    refused = await operator.post(f"/runs/{run_id}/replay", json={})
    assert refused.status_code == 409
    assert 'Set `record = "full"`' in refused.json()["error"]["message"]


async def test_turn_of_a_session_is_not_replayed_without_its_variables(operator: httpx2.AsyncClient) -> None:
    await operator.post("/sessions", json={"id": "turns"})
    turns = [
        (await operator.post("/sessions/turns/run", json={"code": code})).json()["run_id"]
        for code in ("let x = 41", "typeof x")
    ]
    detail = (await operator.get(f"/runs/{turns[1]}")).json()
    assert (detail["output"], detail["turn"], detail["replay"]["recorded"]) == ("number", 2, False)
    for mode in ("same", "recorded"):
        refused = await operator.post(f"/runs/{turns[1]}/replay?wait=true", json={"mode": mode})
        assert refused.status_code == 409, refused.text
        assert "a turn of a session" in refused.json()["error"]["message"]


async def test_failed_run_has_message_code_and_last_log_lines_with_the_default_level(
    operator: httpx2.AsyncClient,
) -> None:
    code = "console.log('before');\nthrow new TypeError('no <b>such</b> thing')"
    response = await operator.post("/run", json={"code": code})
    assert response.headers["x-run-id"] == response.json()["run_id"]
    entry = await newest(
        operator, status="failed", protocol="tpmjs,execbox,-mcp", text=response.json()["run_id"]
    )
    assert entry["error"]["message"] == "TypeError: no <b>such</b> thing"
    detail = (await operator.get(f"/runs/{entry['run_id']}")).json()
    assert (detail["code"], detail["error"]["line"]) == (code, 2)
    assert [log["line"] for log in detail["logs"]] == ["before"]


async def test_long_values_are_left_out_of_the_record(
    operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    code = "console.log('x'.repeat(400_000)); return 'y'.repeat(400_000)"
    await run(execbox, "long", code, maxLogChars=1_000_000)
    detail = (await operator.get(f"/runs/{(await newest(operator))['run_id']}")).json()
    assert detail["output"] == {"$cut": 400_002}
    [log] = detail["logs"]
    assert (log["line"][:3], len(log["line"])) == ("xxx", 10_000)


async def test_users_see_their_own_runs_of_the_protocols_of_their_key(
    server: ServeProcess, home: Path, operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    await run(execbox, "mine", "1")
    foreign = (await newest(operator))["run_id"]
    key = add_user(home, "ann", "execbox", "rep")
    async with client_of(server, key) as ann:
        own = (await ann.post("/run", json={"code": "1"})).json()["run_id"]
        listed = (await ann.get("/runs?owner=key")).json()
        assert [each["run_id"] for each in listed["runs"]] == [own]
        assert listed["runs"][0]["owner_name"] == "ann"
        assert listed["counts"]["completed"] == 1
        unknown = await ann.get("/runs/unknown")
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/replay")):
            refused = await ann.request(method, f"/runs/{foreign}{path}")
            assert (refused.status_code, refused.json()["error"]["message"]) == (
                404,
                unknown.json()["error"]["message"].replace("unknown", foreign),
            )
    assert own in [each["run_id"] for each in (await operator.get("/runs?owner=ann")).json()["runs"]]
    async with client_of(server, add_user(home, "ann", "abilities")) as narrow:
        assert (await narrow.get("/runs")).json()["runs"] == []
        assert (await narrow.get(f"/runs/{own}")).status_code == 404
    async with client_of(server, "wrong") as nobody:
        assert (await nobody.get("/runs")).status_code == 401


async def test_key_has_its_own_level_and_other_runs_can_be_followed_too(home: Path) -> None:
    key = add_user(home, "eve", "execbox", "rep")
    [listed] = [
        each
        for each in json.loads(hutch("key", "list", "--json", env={"HUTCH_HOME": str(home)}).stdout)
        if key.endswith(each["ends_with"])
    ]
    body = {"code": "return 6 * 7"}
    with running_server(
        HUTCH_HOME=str(home), HUTCH_API_KEY=OPERATOR, HUTCH_RECORD_KEYS=f"{listed['id']}=full"
    ) as own:
        async with client_of(own, key) as client, client_of(own, OPERATOR) as operator:
            recorded = []
            for each in (client, operator):
                run_id = (await each.post("/run", json=body)).json()["run_id"]
                recorded.append((await operator.get(f"/runs/{run_id}")).json())
            logs = await live_logs_of_a_run_with_the_default_level(own, operator)
            flow_levels = [await level_of_a_flow(each, operator) for each in (client, operator)]
    assert [run["recorded"] for run in recorded] == ["full", "errors"]
    assert (recorded[0]["output"], "output" in recorded[1]) == (42, False)
    assert logs == ["before"]
    assert flow_levels == ["full", "errors"]


async def level_of_a_flow(client: httpx2.AsyncClient, operator: httpx2.AsyncClient) -> str:
    """Runs a flow. Returns the level at which the flow's run is recorded."""
    await client.post("/flows", json=flow([node("wait", "wait", seconds=0)]))
    run_id = (await client.post("/flows/tested/runs", json={})).json()["run_id"]
    await operator.get(f"/runs/{run_id}/events")
    return str((await operator.get(f"/runs/{run_id}")).json()["recorded"])


async def live_logs_of_a_run_with_the_default_level(
    server: ServeProcess, operator: httpx2.AsyncClient
) -> list[str]:
    """Returns the log lines that a client gets while the run is in progress. At the default level, log lines
    are not recorded.
    """
    code = "console.log('before');\nawait tools.add({a: 1});"
    async with connect_execbox(server.execbox, Authorization=f"Bearer {OPERATOR}") as execbox:
        await execbox.send(execute("live", code, tools=("add",)))
        await execbox.started("live")
        call = await execbox.call("live")
        run_id = (await newest(operator, status="running"))["run_id"]
        detail = (await operator.get(f"/runs/{run_id}")).json()
        assert [(each["tool"], each["line"], "input" in each) for each in detail["tool_calls"]] == [
            ("add", 2, False)
        ]
        lines = []
        async with operator.stream("GET", f"/runs/{run_id}/events") as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and (event := json.loads(line[6:]))["type"] == "log":
                    lines.append(event["line"])
                    await execbox.send(tool_result(call, 1))
        await execbox.end("live")
    ended = (await operator.get(f"/runs/{run_id}")).json()
    assert (ended["recorded"], "logs" in ended, "code" in ended) == ("errors", False, False)
    assert [(each["tool"], each["line"], "input" in each) for each in ended["tool_calls"]] == [
        ("add", 2, False)
    ]
    return lines


async def test_pages_follow_each_other_while_runs_are_added(
    operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    for number in range(5):
        await run(execbox, f"p{number}", "1")
    whole = [each["run_id"] for each in (await operator.get("/runs?limit=5")).json()["runs"]]
    page = (await operator.get("/runs?limit=2")).json()
    found = [each["run_id"] for each in page["runs"]]
    await run(execbox, "later", "1")
    while len(found) < 5:
        page = (await operator.get("/runs", params={"limit": "2", "cursor": page["next"]})).json()
        found += [each["run_id"] for each in page["runs"]]
    assert found[:5] == whole


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=done", "status"),
        ("since=soon", "since"),
        ("sort=size", "sort"),
        ("order=up", "order"),
        ("cursor=x", "cursor"),
        ("limit=0", "limit"),
        ("colour=red", "colour"),
        ("tool=" + "x" * 400, "tool"),
    ],
)
async def test_wrong_parameter_is_named(operator: httpx2.AsyncClient, query: str, field: str) -> None:
    response = await operator.get(f"/runs?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("query", "similar"),
    [("protocol=execbx", "execbox"), ("protocol=-tmpjs", "tpmjs"), ("engine=quickj", "quickjs")],
)
async def test_misspelled_filter_is_refused_with_the_similar_name(
    operator: httpx2.AsyncClient, query: str, similar: str
) -> None:
    response = await operator.get(f"/runs?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["message"].endswith(f"Did you mean {similar}?")


async def test_command_line_lists_shows_and_replays(
    server: ServeProcess, home: Path, operator: httpx2.AsyncClient, execbox: ExecboxClient
) -> None:
    await run(execbox, "cli", CODE, 6)
    run_id = (await newest(operator))["run_id"]
    await run(execbox, "bad", "throw new Error('the shop\\nis closed')")
    # When the server gets this request for a list, it writes queued records.
    assert (await newest(operator, status="failed"))["outcome"] == "runtime_error"
    env = {"HUTCH_HOME": str(home), "HUTCH_API_KEY": OPERATOR}

    def call(*arguments: str) -> Any:
        return hutch("runs", *arguments, env=env)

    local = await asyncio.to_thread(call, "list", "--failed", "--since", "1h")
    assert "runtime_error" in local.stdout
    assert "line 1: the shop is closed" in local.stdout
    assert run_id not in local.stdout
    shown = await asyncio.to_thread(call, "show", run_id)
    assert "tools.add #1" in shown.stdout
    exported = await asyncio.to_thread(call, "export", "--code", "runtime_error", "--url", server.url)
    assert json.loads(exported.stdout.splitlines()[0])["outcome"] == "runtime_error"
    replayed = await asyncio.to_thread(call, "replay", run_id, "--url", server.url)
    assert (replayed.returncode, replayed.stdout.strip()) == (0, "10")
    followed = await asyncio.to_thread(call, "tail", run_id, "--url", server.url)
    assert "tool_call_started" in followed.stdout
    missing = await asyncio.to_thread(call, "show", "unknown")
    assert missing.returncode == 2
