"""Hostile texts in run records and in requests for run records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.support.processes import NO_WARM_RUNNERS, ServeProcess, hutch, running_server
from tests.support.stalls import ServerStalls, repeat_on_stall

from hutch.api.remote import connect
from hutch.protocols.runs.events import MAX_FOLLOWERS

OPERATOR = "operator-key-operator-key"
LITERAL = "authors-literal-0123456789"
WRAPPER = (
    f"export async function wrapper() {{ const key = '{LITERAL}'; console.log(key); throw new Error(key) }}"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def server(home: str) -> Iterator[ServeProcess]:
    settings = {"HUTCH_HOME": home, "HUTCH_API_KEY": OPERATOR, "HUTCH_RECORD": "full"}
    with running_server(**settings, **NO_WARM_RUNNERS) as running:
        yield running


@pytest.fixture
def client(server: ServeProcess) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as opened:
        yield opened


def run(client: httpx2.Client, body: bytes) -> httpx2.Response:
    return client.post("/run", content=body, headers={"Content-Type": "application/json"})


def test_record_with_lone_surrogates_can_be_read_and_replayed(client: httpx2.Client) -> None:
    run_id = run(client, rb'{"code": "return x", "inputs": {"x": "\ud800\u0000"}}').json()["run_id"]
    shown = client.get(f"/runs/{run_id}")
    assert (shown.status_code, shown.json()["output"]) == (200, "\ud800\0")
    assert client.get(f"/runs/{run_id}/events").text.count("event: end") == 1
    replayed = client.post(f"/runs/{run_id}/replay?wait=true", json={})
    assert (replayed.status_code, replayed.json()["output"]) == (200, "\ud800\0")


def test_code_with_a_lone_surrogate_is_recorded(client: httpx2.Client) -> None:
    run_id = run(client, rb'{"code": "return \"\ud800\""}').json()["run_id"]
    assert client.get(f"/runs/{run_id}").json()["code"] == 'return "\N{REPLACEMENT CHARACTER}"'


@pytest.mark.parametrize(
    "value",
    [
        b'"' + "é".encode() * 1_000_000 + b'"',
        b"[" + b"1e300," * 200_000 + b"1]",
        b'"' + b"\\n" * 4_000_000 + b'"',
    ],
    ids=["letters", "exponents", "line breaks"],
)
@repeat_on_stall
async def test_large_inputs_do_not_stall_the_server(server: ServeProcess, value: bytes) -> None:
    body = b'{"code": "return 1", "inputs": {"x": ' + value + b"}}"
    headers = {"Authorization": f"Bearer {OPERATOR}", "Content-Type": "application/json"}
    with ServerStalls(server.process.pid, server.url) as stalls:
        response = await asyncio.to_thread(
            httpx2.post, f"{server.url}/run", content=body, headers=headers, timeout=60
        )
    assert response.status_code == 200
    stalls.assert_short()


@repeat_on_stall
async def test_replay_with_large_inputs_of_tools_does_not_stall_the_server(
    server: ServeProcess, client: httpx2.Client
) -> None:
    """The error message shows how the inputs differ. Encoding such a large input for the message in one step
    takes 0.3 s.
    """
    run_id = await record_run_with_a_tool(server)
    body = {"code": "await tools.note('\"'.repeat(4_000_000))"}
    with ServerStalls(server.process.pid, server.url) as stalls:
        replayed = client.post(f"/runs/{run_id}/replay?wait=true", json=body).json()
    assert replayed["outcome"] == "replay_diverged"
    assert len(replayed["error"]["message"]) < 1_000
    stalls.assert_short()


async def record_run_with_a_tool(server: ServeProcess) -> str:
    async def note(text: str, /) -> None: ...

    async with connect(server.url.replace("http", "ws"), api_key=OPERATOR) as remote:
        return (await remote.run("await tools.note('a')", tools=[note])).run_id


@repeat_on_stall
async def test_list_of_runs_with_many_calls_does_not_stall_the_server(
    server: ServeProcess, client: httpx2.Client, home: str
) -> None:
    """Decoding the details of all these runs in one step takes 0.15 s."""
    run_id = run(client, b'{"code": "1"}').json()["run_id"]
    client.get(f"/runs/{run_id}")
    call = {"provider": "p" * 100, "tool": "t" * 100, "ok": True, "duration_ms": 1.0, "start_ms": 1.0}
    with sqlite3.connect(Path(home, "hutch.db")) as database:
        columns = "owner, protocol, engine, duration_ms, outcome, recorded"
        database.execute(
            f"INSERT INTO runs (run_id, label, created_at, details, {columns})"
            f" WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
            f" SELECT 'many' || i, 'many calls', '2031-01-01T00:00:00.000Z', ?, {columns} FROM runs, n"
            f" WHERE run_id = ? ON CONFLICT DO NOTHING",
            (json.dumps({"calls": [call] * 200}), run_id),
        )
    with ServerStalls(server.process.pid, server.url) as stalls:
        listed = client.get("/runs", params={"label": "many calls", "limit": 1000}).json()["runs"]
    assert len(listed) == 1_000
    stalls.assert_short()


@repeat_on_stall
async def test_events_of_a_run_with_many_lines_do_not_stall_the_server(
    server: ServeProcess, client: httpx2.Client
) -> None:
    code = "for (let line = 0; line < 9_900; line++) console.log(`line ${line}`)"
    limits = {"max_log_lines": 10_000, "max_log_chars": 1_000_000, "timeout_ms": 60_000}
    run_id = client.post("/run", json={"code": code, "limits": limits}).json()["run_id"]
    # Request the run first. The server answers this request only after the record is written.
    client.get(f"/runs/{run_id}")
    with ServerStalls(server.process.pid, server.url) as stalls:
        events = client.get(f"/runs/{run_id}/events").text
    assert events.count("event: log") == 9_900
    assert "id: 9903\nevent: end" in events
    stalls.assert_short()


async def test_number_of_clients_that_follow_a_run_is_limited(
    server: ServeProcess, client: httpx2.Client
) -> None:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as connection:
        body = {"code": "await new Promise(() => {})", "label": "followed", "limits": {"timeout_ms": 60_000}}
        running = asyncio.create_task(connection.post("/run", json=body))
        found: list[dict[str, str]] = []
        while not found:
            found = (await connection.get("/runs", params={"label": "followed"})).json()["runs"]
        path = f"/runs/{found[0]['run_id']}"
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(MAX_FOLLOWERS):
                stream = await stack.enter_async_context(connection.stream("GET", f"{path}/events"))
                assert stream.status_code == 200
            refused = await connection.get(f"{path}/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert f"{MAX_FOLLOWERS} clients follow this run already" in refused.text
        await connection.post(f"{path}/cancel")
        await running


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_time_that_no_clock_can_show_is_refused(client: httpx2.Client, time: str) -> None:
    response = client.get("/runs", params={"since": time})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("since: expected a time")


def test_only_the_author_finds_the_wrapper_code_in_a_record(
    server: ServeProcess, client: httpx2.Client, home: str
) -> None:
    definition = {"ability_id": "throws", "service_name": "x", "ability_name": "x", "wrapper_code": WRAPPER}
    secrets = {}
    for name in ("ann", "bob"):
        client.post("/console/users", json={"name": name})
        secrets[name] = client.post(f"/console/users/{name}/keys", json={}).json()["secret"]
    arguments = ("ability", "add", "--user", "ann", "--shared", "-")
    hutch(*arguments, input=json.dumps(definition), env={"HUTCH_HOME": home})
    seen = {}
    for name, secret in secrets.items():
        headers = {"Authorization": f"Bearer {secret}"}
        url = f"{server.url}/my/abilities/throws/execute"
        run_id = httpx2.post(url, json={}, headers=headers, timeout=60).headers["x-run-id"]
        record = httpx2.get(f"{server.url}/runs/{run_id}", headers=headers)
        assert record.json()["outcome"] == "runtime_error"
        seen[name] = LITERAL in record.text
    assert seen == {"ann": True, "bob": False}
