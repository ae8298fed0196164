"""Flows by those who mean harm: as their authors, as clients of a server, as runtimes, and by their size."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from tests.doors.abilities.towns import ability
from tests.doors.rep.boards import Board
from tests.doors.rep.stations import Caller, Station, parsed, station
from tests.flows import chain, edge, flow, node, serving
from tests.hostile.conftest import peak_bytes
from tests.processes import HUTCH, PATIENCE, hutch, until
from tests.store.made import a_run

from hutch.doors.rep import allowance
from hutch.settings import Settings

pytestmark = pytest.mark.anyio

OPERATOR = "operator"
MARK = "do-not-write-this-down"
PLACES = 4
MONTH = 31 * 24 * 3600
SOON = 6.0
"""What a request may take that the server should see through at once, on a machine that does other things."""


@pytest.fixture(scope="module")
async def there(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Station, Caller]]:
    """One server for all, whose log says what there is to say; nothing of what flows are given is in it."""
    env = {"HUTCH_API_KEY": OPERATOR, "HUTCH_LOG_LEVEL": "debug", "HUTCH_MAX_FLOWS": str(PLACES)}
    home = str(tmp_path_factory.mktemp("station"))
    async with (
        station(Settings(home=home), TRACE_MIND_ALLOW_SHELL="1", HUTCH_MAX_QUEUE="20", **env) as made,
        made.serving(key=OPERATOR) as operator,
    ):
        yield made, operator
        assert (await operator.get("/health")).status_code == 200
        assert peak_bytes(operator.server.process.pid) < 400 * 2**20
        said = "".join(operator.server.seen)
        assert MARK not in said
        assert "hk_" not in said.replace("hk_…", "")
        assert "Traceback" not in said


@pytest.fixture
def place(there: tuple[Station, Caller]) -> Station:
    return there[0]


@pytest.fixture
def operator(there: tuple[Station, Caller]) -> Caller:
    return there[1]


@pytest.fixture
def rid(request: pytest.FixtureRequest) -> str:
    return f"r-{abs(hash(request.node.nodeid))}"


@pytest.fixture
async def eve(place: Station, operator: Caller, rid: str) -> AsyncIterator[Caller]:
    """Who means harm, with a key for flows and nothing else; her runs are ended with the test."""
    eve = await place.user(operator, f"eve-{rid}")
    yield eve
    for run in (await eve.got("/runs?limit=1000"))["runs"]:
        await eve.post(f"/runs/{run['run_id']}/cancel")


@pytest.fixture
async def bo(place: Station, operator: Caller, rid: str) -> Caller:
    return await place.user(operator, f"bo-{rid}")


def failed(answer: httpx2.Response, status: int, code: str) -> str:
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code), body
    message: str = body["error"]["message"]
    return message


def attempts(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """A flow that tries all of these; that one fails keeps no other from it. Each fails into `SELF-why`."""
    whys = [node(f"{each['id']}-why", "dsl.emit", e=f"$step.{each['id']}.error") for each in nodes]
    edges = [edge(each["id"], f"{each['id']}-why", on="failure") for each in nodes]
    return flow([*nodes, *whys], edges, name="attempts")


async def tried(eve: Caller, rid: str, nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Why each failed. All did."""
    await eve.begin(attempts(nodes), rid)
    run = await eve.ended(rid)
    assert run["status"] == "completed", run
    outputs = run["summary"]["outputs"]
    assert set(outputs) == {f"{each['id']}-why" for each in nodes}, outputs
    return {id.removesuffix("-why"): each["e"] for id, each in outputs.items()}


# --- files and the environment of the host ---


async def test_no_step_on_a_server_reads_a_file(place: Station, operator: Caller, rid: str) -> None:
    eve = await place.user(operator, f"eve-{rid}", ("rep", "toolscript", "execbox"))
    (place.home / "secret.json").write_text(json.dumps(flow([node("a", "dsl.emit", v=MARK)])))
    paths = [
        str(place.home / "secret.json"),
        "secret.json",
        "../secret.json",
        "/proc/self/environ",
        "/dev/zero",
    ]
    nodes = [node(f"flow{at}", "flow.run", flow=path, inputs={}) for at, path in enumerate(paths)]
    nodes += [node(f"script{at}", "toolscript.run", file=path) for at, path in enumerate(paths)]
    nodes.append(node("class", "dsl.emit", v="$input.__class__.__init__"))
    nodes.append(node("proto", "dsl.emit", v='$input["__proto__"].constructor'))
    nodes.append(node("engine", "code.run", code="return 1", engine="../../../etc/passwd"))
    why = await tried(eve, rid, nodes)
    assert all("flow" in why[f"flow{at}"]["message"] for at in range(len(paths)))
    assert all("may name no files" in why[f"script{at}"]["message"] for at in range(len(paths)))
    assert MARK not in json.dumps(why)


async def test_code_in_a_step_sees_nothing_of_the_host(place: Station, operator: Caller, rid: str) -> None:
    eve = await place.user(operator, f"eve-{rid}", ("rep", "execbox"))
    code = """
        const seen = {}
        for (const look of ["Deno.env.toObject()", "process.env", "require('fs').readFileSync('/etc/passwd')",
                            "Deno.readTextFileSync('/proc/self/environ')", "globalThis.step"]) {
            try { seen[look] = String((0, eval)(look)) } catch (error) { seen[look] = null }
        }
        return JSON.stringify(seen)
    """
    nodes = [node("quickjs", "code.run", code=code), node("deno", "code.run", code=code, engine="deno")]
    await eve.begin(flow(nodes, name="looks"), rid)
    outputs = json.dumps((await eve.ended(rid))["summary"]["outputs"])
    assert "HUTCH" not in outputs
    assert "root:" not in outputs


async def test_a_file_without_end_is_no_flow(tmp_path: Path) -> None:
    manifest = [
        {"name": "a", "ir_path": "../../../../../../dev/zero", "step_kinds": [], "inputs_schema_hash": ""}
    ]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "flow.json").write_text(
        json.dumps(flow([node("a", "flow.run", flow="/dev/zero", inputs={})]))
    )
    done = hutch("flow", "run", "--manifest", str(tmp_path / "manifest.json"), "--flow", "a")
    assert (done.returncode, "larger than" in done.stderr) == (2, True), done.stderr
    done = hutch("flow", "run", str(tmp_path / "flow.json"))
    assert (done.returncode, "larger than" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch owned']",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "[" * 100_000,
        "? " * 50_000,
        "- " * 50_000,
        "a: !!binary |\n  AAAA",
    ],
    ids=["tag", "aliases", "open", "keys", "lists", "binary"],
)
def test_yaml_does_nothing_but_say_values(tmp_path: Path, text: str) -> None:
    (tmp_path / "flow.yaml").write_text(text)
    done = hutch("flow", "validate", "flow.yaml", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["flow.yaml"]


# --- more than the key is for ---


async def test_no_flow_opens_a_door_that_the_key_does_not(eve: Caller, rid: str) -> None:
    code = node("c", "code.run", code="return 1")
    failed(await eve.post("/flows", flow([code], name="code")), 403, "FORBIDDEN")
    failed(await eve.post("/flows", flow([node("s", "shell.run", command="id")])), 400, "INVALID_REQUEST")
    inner = [
        flow([code]),
        flow([node("f", "flow.run", flow=flow([code]), inputs={})]),
        flow([node("s", "shell.run", command="id")]),
        flow([node("t", "tool.execute", package="x", name="y", params={})]),
    ]
    await eve.begin(
        attempts(
            [node(f"f{at}", "flow.run", flow=f"$input.flows[{at}]", inputs={}) for at in range(len(inner))]
        ),
        rid,
        inputs={"flows": inner},
    )
    outputs = (await eve.ended(rid))["summary"]["outputs"]
    assert len(outputs) == len(inner)
    assert all(
        "there is no kind" in json.dumps(each) or "not allowed" in json.dumps(each)
        for each in outputs.values()
    )
    # Brought along in the flow itself.
    await eve.begin(flow([node("f", "flow.run", flow=flow([code]), inputs={})], name="inner"), f"{rid}-2")
    assert (await eve.ended(f"{rid}-2"))["outcome"] == "step_failed"


async def test_a_key_for_less_goes_on_with_no_run_of_a_key_for_more(
    place: Station, operator: Caller, rid: str
) -> None:
    ada = await place.user(operator, f"ada-{rid}", ("rep", "execbox"))
    less = await place.user(operator, f"ada-{rid}", ("rep",))
    await ada.begin(flow([node("c", "code.run", code="throw new Error()")], name="code"), rid)
    assert (await less.ended(rid))["status"] == "failed"
    failed(await less.post(f"/runs/{rid}/resume"), 403, "FORBIDDEN")
    failed(await less.post("/flows/code/runs", {"run_id": rid}), 403, "FORBIDDEN")
    assert (await ada.post(f"/runs/{rid}/resume")).status_code == 202


async def test_options_are_not_for_the_client_to_say(eve: Caller, rid: str) -> None:
    assert (await eve.post("/flows", flow([node("w", "wait", seconds=0)], name="short"))).status_code == 201
    for option, value in {
        "user": "bo",
        "egress_allow": ["127.0.0.1"],
        "kinds": ["code.run"],
        "files": True,
        "allow_shell": True,
        "folder": "/",
        "options": {},
    }.items():
        answer = await eve.post("/flows/short/runs", {"run_id": rid, option: value})
        assert option in failed(answer, 400, "INVALID_REQUEST")


# --- what is another's ---


async def test_nothing_of_another_is_seen_or_touched(eve: Caller, bo: Caller, rid: str) -> None:
    ask = flow([node("ask", "approve", message=MARK)], name=f"f-{rid}")
    await bo.begin(ask, rid, inputs={"secret": MARK})
    calls = [
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/approvals"),
        ("POST", "/cancel"),
        ("POST", "/resume"),
        ("POST", "/approvals/ask"),
    ]
    for method, path in calls:
        body = {"json": {"approved": True}} if method == "POST" else {}
        answer = await eve.call(method, f"/runs/{rid}{path}", **body)
        unknown = await eve.call(method, f"/runs/{'0' * len(rid)}{path}", **body)
        assert failed(answer, 404, "NOT_FOUND").replace(rid, "") == failed(unknown, 404, "NOT_FOUND").replace(
            "0" * len(rid), ""
        )
    for method in ("GET", "DELETE"):
        failed(await eve.call(method, f"/flows/f-{rid}"), 404, "NOT_FOUND")
    failed(await eve.post(f"/flows/f-{rid}/runs", {}), 404, "NOT_FOUND")
    assert (await eve.got("/runs")) == {"runs": []}
    assert (await eve.got("/flows")) == {"flows": []}
    # By its name in a step: what she keeps under it herself, which is nothing.
    why = await tried(eve, f"{rid}-eve", [node("f", "flow.run", flow=f"f-{rid}", inputs={})])
    assert "There is no flow" in why["f"]["message"]
    assert (await bo.got(f"/runs/{rid}"))["status"] in ("pending", "running")
    await bo.post(f"/runs/{rid}/cancel")


async def test_the_same_run_id_tells_nothing_and_hides_nothing(
    place: Station, operator: Caller, eve: Caller, bo: Caller, rid: str
) -> None:
    short = flow([node("w", "wait", seconds=0)], name="short")
    await bo.begin(short, rid, inputs={"secret": MARK})
    await eve.post("/flows", short)
    for inputs in ({"secret": MARK}, {}):
        answer = await eve.post("/flows/short/runs", {"run_id": rid, "inputs": inputs})
        assert MARK not in failed(answer, 409, "CONFLICT")
    # A run of another door is not taken from its owner by one who calls a run of a flow the same.
    owner = await place.store.users.by_name(f"bo-{rid}")
    assert owner is not None
    other = a_run(run_id=f"{rid}-execbox", owner=owner.id, door="execbox")
    await place.store.runs.add_many([other])
    await eve.begin(short, other.run_id)
    assert (await eve.ended(other.run_id))["flow"] == "short"
    assert (await bo.got(f"/runs/{other.run_id}"))["door"] == "execbox"


async def test_names_are_no_sql(eve: Caller, bo: Caller, rid: str) -> None:
    short = flow([node("w", "wait", seconds=0)], name="short")
    await bo.begin(short, rid)
    odd = [
        f"{rid}'; DROP TABLE flow_runs;--",
        f"{rid}%",
        f"{rid}' OR '1'='1",
        f":run_id{rid}",
        f"{rid}\\",
        f"{rid} é😀",
    ]
    await eve.post("/flows", short)
    for each in odd:
        assert (await eve.get(f"/runs/{quote(each)}")).status_code == 404
    await eve.begin(short, odd[0])
    assert (await eve.ended(quote(odd[0])))["run_id"] == odd[0]
    assert {
        run["run_id"] for run in (await eve.got(f"/runs?before={quote(chr(0x10FFF0))}_x' OR 1=1--"))["runs"]
    } <= set(odd)
    assert (await eve.got(f"/flows?after={quote(chr(39))} OR 1=1--"))["flows"] in (
        [],
        [(await eve.got("/flows"))["flows"][0]],
    )
    for name in ("../x", "a/b", "a'b", "openapi.json", "x" * 300):
        failed(
            await eve.post("/flows", flow([node("w", "wait", seconds=0)], name=name)), 400, "INVALID_REQUEST"
        )
    assert (await bo.ended(rid))["status"] == "completed"


async def test_an_ability_of_another_is_unknown(
    place: Station, operator: Caller, bo: Caller, rid: str
) -> None:
    eve = await place.user(operator, f"eve-{rid}", ("rep", "abilities"))
    owner = await place.user(operator, f"bo-{rid}", ("rep", "abilities"))
    added = await owner.post("/my/abilities", ability(place.upstream.url(""), ability_id="private_one"))
    assert added.status_code == 201, added.text
    nodes = [
        node("a", "ability.execute", ability="private_one", params={}),
        node("b", "ability.execute", ability="nobodys", params={}),
    ]
    why = await tried(eve, rid, nodes)
    assert why["a"]["message"].replace("private_one", "") == why["b"]["message"].replace("nobodys", "")


# --- what may be reached ---


async def test_no_request_of_a_step_comes_home(
    place: Station, operator: Caller, eve: Caller, rid: str
) -> None:
    """The server itself listens on loopback, where one other port is allowed."""
    port = urlsplit(operator.server.url).port
    urls = [
        f"http://127.0.0.1:{port}/health",
        f"http://localhost:{port}/health",
        f"http://0.0.0.0:{port}/health",
        f"http://[::1]:{port}/health",
        f"http://[::ffff:127.0.0.1]:{port}/health",
        f"http://2130706433:{port}/health",
        f"http://0x7f.1:{port}/health",
        f"http://127.0.0.1.nip.io:{port}@169.254.169.254/latest/meta-data/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        f"http://{place.upstream.address}@127.0.0.1:{port}/health",
        f"http://127.0.0.1:{port}\\@{place.upstream.address}/",
    ]
    nodes = [node(f"u{at}", "http.get", 5_000, url=url) for at, url in enumerate(urls)]
    smuggled = {"X": "a\r\nHost: internal", "Y\r\nHost": "internal", "Z": "\0"}
    nodes += [
        node(f"h{at}", "http.get", 5_000, url=place.upstream.url("/smuggled"), headers={name: value})
        for at, (name, value) in enumerate(smuggled.items())
    ]
    began = time.monotonic()
    why = await tried(eve, rid, nodes)
    assert time.monotonic() - began < PATIENCE / 2
    assert not any("root:" in json.dumps(each) or '"ok"' in json.dumps(each) for each in why.values())
    assert place.upstream.asked["/smuggled"] == 0


# --- the server's time, memory and places ---

SMALL = [node(f"s{at}", "wait", seconds=0) for at in range(3_000)]
COSTLY: dict[str, dict[str, Any]] = {
    "edges to nowhere": flow(SMALL, [edge(f"s{at % 3_000}", f"sx{at}") for at in range(50_000)]),
    "references to nowhere": flow([node(f"s{at}", "dsl.emit", a=f"$step.sx{at}.a") for at in range(3_000)]),
    "inputs to nowhere": flow(
        [node(f"s{at}", "dsl.emit", a=f"$input.sx{at}") for at in range(3_000)],
        inputs_schema={f"a{at}": {"type": "string"} for at in range(3_000)},
    ),
    "types": flow(SMALL[:1], inputs_schema={f"a{at}": {"type": f"strin{at}"} for at in range(30_000)}),
    "cycles": flow(
        SMALL,
        [
            *chain(*(each["id"] for each in SMALL)),
            *(edge(f"s{2_999 - at}", f"s{at}") for at in range(1_000)),
        ],
    ),
    "cases": flow(
        [node("d", "switch", key_from="$input.x", cases={str(at): f"no{at}" for at in range(5_000)}), *SMALL]
    ),
    "unknown keys": {**flow(SMALL[:1]), "constants": {f"policy{at}": 1 for at in range(50_000)}},
    "long names": flow([node("a" * 100_000, "wait", seconds=0), *SMALL], [edge("a" * 99_999, "s1")]),
    "too many": flow([node(f"s{at}", "wait", seconds=0) for at in range(10_001)]),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_no_flow_takes_the_servers_time_by_being_wrong(eve: Caller, name: str) -> None:
    began = time.monotonic()
    answer = await eve.post("/flows", COSTLY[name])
    failed(answer, 400, "INVALID_REQUEST")
    assert time.monotonic() - began < SOON
    assert len(answer.content) < 200_000


async def test_others_are_served_while_a_large_flow_is_read(eve: Caller, bo: Caller) -> None:
    nodes = [node(f"s{at}", "wait", seconds=0) for at in range(10_000)]
    edges = [edge(f"s{at}", f"s{at + step}") for step in range(1, 8) for at in range(9_990)]
    large = asyncio.ensure_future(eve.post("/flows", flow(nodes, edges, name="large")))
    slowest = 0.0
    while not large.done():
        began = time.monotonic()
        assert (await bo.get("/flows")).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    assert (await large).status_code == 201
    assert slowest < SOON


@pytest.mark.parametrize(
    "body",
    [
        {"timeout": int("9" * 400)},
        {"timeout": 1e300},
        {"timeout": -1},
        {"concurrency": 2**63},
        {"version": 2**63},
        {"run_id": "a\nb"},
        {"run_id": "a\0b"},
        {"run_id": "x" * 1_000},
    ],
    ids=["digits", "long", "negative", "concurrency", "version", "lines", "nul", "name"],
)
async def test_no_number_and_no_name_is_taken_that_cannot_be_used(eve: Caller, body: dict[str, Any]) -> None:
    await eve.post("/flows", flow([node("w", "wait", seconds=0)], name="short"))
    answer = await eve.call(
        "POST", "/flows/short/runs", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    failed(answer, 400, "INVALID_REQUEST")
    assert (await eve.got("/runs"))["runs"] == []


async def test_what_a_runtime_cannot_be_given_is_not_begun(eve: Caller, rid: str) -> None:
    big = flow([node("a", "dsl.emit", a="x" * 9_000_000)], name="big")
    assert (await eve.post("/flows", big)).status_code == 201
    answer = await eve.post("/flows/big/runs", {"run_id": rid, "inputs": {"a": "x" * 9_000_000}})
    failed(answer, 413, "PAYLOAD_TOO_LARGE")
    await eve.post("/flows", {**big, "flow": {"name": "big2", "timeout_ms": 0}})
    many = flow(
        [node(f"f{at}", "flow.run", flow=name, inputs={}) for at, name in enumerate(["big", "big2"])],
        name="many",
    )
    assert (await eve.post("/flows", many)).status_code == 201
    assert "MiB" in failed(await eve.post("/flows/many/runs", {"run_id": rid}), 400, "INVALID_REQUEST")


async def test_odd_numbers_and_long_words_end_a_run_and_nothing_else(eve: Caller, rid: str) -> None:
    """An event without what it should have made the server lose the run, again every two seconds."""
    long = flow([node("a", "approve", message="$input.m")], name="asks")
    await eve.begin(long, rid, inputs={"m": "x" * 100_000})
    run = await eve.ended(rid)
    assert "at most 10000" in run["summary"]["error"]["message"] or "10000" in json.dumps(
        run["summary"]["error"]
    )
    nodes = [
        node("month", "wait", seconds=1e9),
        node("never", "wait", seconds=-1),
        node("nan", "wait", seconds="$input.none"),
    ]
    await tried(eve, f"{rid}-2", nodes)


async def test_an_output_is_not_handed_on_a_thousand_times(eve: Caller, rid: str) -> None:
    """8 GB, if it were."""
    nodes = [
        node("big", "dsl.emit", v="$input.big"),
        node("more", "dsl.emit", v=["$step.big"] * 2_000),
        node("body", "http.request", method="POST", url="https://example.com", body=["$step.big"] * 2_000),
    ]
    ends = [node(f"{id}-why", "dsl.emit", e=f"$step.{id}.error") for id in ("more", "body")]
    edges = [edge("big", "more"), edge("big", "body"), edge("more", "more-why", on="failure")]
    edges.append(edge("body", "body-why", on="failure"))
    began = time.monotonic()
    await eve.begin(flow([*nodes, *ends], edges, name="doubles"), rid, inputs={"big": "x" * 4_000_000})
    outputs = (await eve.ended(rid))["summary"]["outputs"]
    assert all("32 MiB" in outputs[f"{id}-why"]["e"]["message"] for id in ("more", "body"))
    assert time.monotonic() - began < PATIENCE / 2


async def test_retries_without_end_come_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MOST_BYTES", 200_000)
    board = Board()
    run = board.flow_run(flow([node("a", "fail", retries=2**31 - 1, times=2**31)]))
    run.emit = lambda type, **fields: run.context.allowance.take(len(json.dumps(fields)))
    async with asyncio.timeout(PATIENCE):
        summary = await run.run()
    assert summary.error is not None
    assert "which is the most" in summary.error["message"]
    assert 100 < board.attempts["a"] < 10_000


async def test_outputs_without_end_come_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MOST_BYTES", 100_000)
    ids = [f"s{at}" for at in range(50)]
    ended = await Board().run(flow([node(id, "dsl.emit", v="x" * 5_000) for id in ids], chain(*ids)))
    assert "which is the most" in ended.error["message"]
    assert 10 < ended.summary["completed_steps"] < 25


async def test_flows_within_flows_have_so_many_steps_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty in twenty in twenty, seven levels: a thousand million."""
    monkeypatch.setattr(allowance, "MOST_STEPS", 2_000)
    inner = flow([node("w", "wait", seconds=0)], name="l0")
    kept = {"l0": inner}
    for level in range(1, 7):
        steps = [node(f"f{at}", "flow.run", flow=f"l{level - 1}", inputs={}) for at in range(20)]
        kept[f"l{level}"] = flow(steps, name=f"l{level}")
    began = time.monotonic()
    ended = await Board().run(kept["l6"], flows=kept)
    assert "which is the most" in ended.error["message"]
    assert time.monotonic() - began < PATIENCE / 2
    # Itself in itself.
    kept["self"] = flow([node("f", "flow.run", flow="self", inputs={})], name="self")
    assert "levels deep" in (await Board().run(kept["self"], flows=kept)).error["message"]


async def test_one_user_does_not_have_all_places(eve: Caller, bo: Caller, operator: Caller, rid: str) -> None:
    """With waits of a month, and then with as many that wait for those as the server lets her."""
    await eve.post("/flows", flow([node("w", "wait", seconds=MONTH - 1)], name="month"))
    answers = [await eve.post("/flows/month/runs", {"run_id": f"{rid}-{at}"}) for at in range(30)]
    taken = [answer for answer in answers if answer.status_code == 202]
    assert PLACES < len(taken) <= 11
    assert "of yours" in failed(answers[-1], 503, "BUSY")
    short = flow([node("w", "wait", seconds=0)], name="short")
    async with asyncio.timeout(PATIENCE / 2):
        await bo.begin(short, f"{rid}-bo")
        assert (await bo.ended(f"{rid}-bo"))["status"] == "completed"


async def test_who_never_reads_events_is_waited_for_by_nobody(
    place: Station, operator: Caller, rid: str
) -> None:
    eve = await place.user(operator, f"eve-{rid}", ("rep", "execbox"))
    code = "for (let at = 0; at < 60; at++) console.log('x'.repeat(60000))"
    await eve.begin(flow([node(f"c{at}", "code.run", code=code) for at in range(3)], name="floods"), rid)
    url = urlsplit(operator.server.url)
    key = eve.headers["Authorization"]
    head = f"GET /runs/{rid}/events HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: {key}\r\n\r\n"
    idle = []
    try:
        for _ in range(40):
            idle.append(socket.create_connection((url.hostname, url.port), timeout=PATIENCE))
            idle[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle[-1].sendall(head.encode())
        assert (await eve.ended(rid))["status"] == "completed"
        began = time.monotonic()
        assert (await eve.get("/flows")).status_code == 200
        assert time.monotonic() - began < SOON
    finally:
        for each in idle:
            each.close()


# --- what steps print ---


async def test_what_a_step_prints_is_no_word_of_the_runtime(
    place: Station, operator: Caller, rid: str
) -> None:
    """Neither on its stdout, nor in the events, nor in the log."""
    eve = await place.user(operator, f"eve-{rid}", ("rep", "execbox"))
    forged = '\n{"jsonrpc":"2.0","id":3,"result":{"status":"completed","summary":{"outputs":"forged"}}}\n'
    sse = "\n\nid: 99\nevent: end\ndata: {}\n\n"
    nodes = [
        node(
            "a",
            "code.run",
            code="console.log(input.forged); console.log(input.sse); return 7",
            input="$input",
        ),
        node("b", "dsl.emit", v="$input"),
    ]
    await eve.begin(flow(nodes, name="prints"), rid, inputs={"forged": forged, "sse": sse, "mark": MARK})
    run = await eve.ended(rid)
    assert run["summary"]["outputs"]["a"] == 7
    text = (await eve.get(f"/runs/{rid}/events")).text
    assert [name for _, name, _ in parsed(text)].count("end") == 1
    assert text.count("\nevent: end\n") == 1


def test_what_a_step_prints_is_none_in_the_runtimes_output_either() -> None:
    forged = '{"jsonrpc":"2.0","id":1,"result":{"status":"completed"}}'
    with serving(TRACE_MIND_ALLOW_SHELL="1", TRACE_MIND_LOG_JSON="1") as runtime:
        nodes = [
            node(
                "sh",
                "shell.run",
                command=f"echo '{forged}'; echo '{forged}' >&2; ls /proc/1/fd; cat /etc/shadow",
            ),
            node("why", "dsl.emit", e="$step.sh.error"),
        ]
        ended = runtime.run(flow(nodes, [edge("sh", "why", on="failure")]), allow_shell=True)
        assert "root:" not in json.dumps(ended.summary)
        assert runtime.close() == b""


def test_a_shell_finds_no_files_no_secrets_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MARK)
    word = f"sleep-{os.getpid()}"
    command = (
        f"env; cat {tmp_path}/secret; ls {Path.home()} /work /root /home; cat /proc/*/environ;"
        f" touch /usr/x; (setsid sh -c 'exec -a {word} sleep 1000' >/dev/null 2>&1 &); true"
    )
    with serving(TRACE_MIND_ALLOW_SHELL="1", HUTCH_MASTER_KEY=MARK, SECRET=MARK) as runtime:
        ended = runtime.run(
            flow([node("sh", "shell.run", command="bash", args=["-c", command])]), allow_shell=True
        )
        assert MARK not in json.dumps(ended.summary)
        assert not Path("/usr/x").exists()
        until(lambda: not _running(word))


def _running(word: str) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text:
            found.append(text)
    return found


# --- runtimes ---

RUNTIME = """
import json, os, sys
EVENTS = [
    {"type": "log"}, {"type": "log", "message": None, "level": 7, "step_id": []}, {"type": "step"},
    {"type": "step", "step_id": {"a": 1}, "state": "started", "duration_ms": "x", "attempt": 1e99},
    {"type": "step", "step_id": "a", "state": "failed", "error": "no"}, {"type": "approval"},
    {"type": "approval", "step_id": 5, "message": [1]}, {"type": "approved"}, {"type": "skipped"},
    {"type": "log", "message": "\\x1b]0;owned\\x07\\x1b[2Jhello\\r\\x9b31m", "step_id": "\\x1b[1A"},
    {"type": "log", "message": "x", "level": "\\x1b[31m"}, {"type": ""}, 7, None, [], {"type": 3},
]
SUMMARY = {"outputs": "\\x1b[2J\\x9b", "completed_steps": "many", "failed_steps": {}, "error": ERROR}
WORD = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)", WORD])
    os._exit(0)
for line in sys.stdin:
    asked = json.loads(line)
    result = {
        "Runtime.Capabilities": {"version": "\\x1b[2J", "step_kinds": ["wait"], "limits": {}},
        "Runtime.StartRun": {"run_id": "\\x1b[31m../../x"},
        "Runtime.Poll": {"status": "STATUS", "events": EVENTS, "summary": SUMMARY},
    }.get(asked["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    print("\\x1b[2Jcomplaint", file=sys.stderr, flush=True)
    print([name for name in os.environ if "MASTER_KEY" in name], file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("completed", "None"),
        ("failed", "{'code': 10**300, 'message': chr(27) + '[2J', 'data': {'details': 5, 'cause': []}}"),
        ("failed", "{'code': -1, 'message': None, 'data': {'details': None, 'step_id': {}, 'attempt': 'x'}}"),
        (
            "failed",
            "{'code': 2001, 'message': 'no', 'data': {'details': {'problems': 3, 'supported': 4}}}",
        ),
        ("failed", "{'code': 1003, 'message': 'no', 'data': {'details': {'problems': [1, {'path': 2}]}}}"),
    ],
    ids=["completed", "large", "nothing", "failed", "refused"],
)
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["people", "json"])
def test_a_runtime_may_say_anything(tmp_path: Path, status: str, error: str, flags: tuple[str, ...]) -> None:
    """Nothing that a terminal would obey comes out, nothing breaks, and nothing of it stays."""
    word = f"left-by-{os.getpid()}-{tmp_path.name}"
    (tmp_path / "runtime.py").write_text(RUNTIME.replace("ERROR", error).replace("STATUS", status))
    (tmp_path / "flow.json").write_text(json.dumps(flow([node("a", "wait", seconds=0)])))
    executor = f"{sys.executable} {tmp_path / 'runtime.py'} {word}"
    env = {"HUTCH_MASTER_KEY": MARK, "HOME": str(tmp_path)}
    done = hutch("flow", "run", str(tmp_path / "flow.json"), "--executor", executor, *flags, env=env)
    assert done.returncode in (0, 1, 3, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x9b" not in done.stdout + done.stderr
    assert "MASTER_KEY" not in done.stderr
    if flags:
        json.loads(done.stdout)
    until(lambda: not _running(word))


@pytest.mark.parametrize("name", ["../../x", "a/b", "/etc/x", "..", "", "x" * 300, "a\0b", "a\nb"])
def test_no_name_of_a_runtime_is_a_path(tmp_path: Path, name: str) -> None:
    if "\0" in name:
        with pytest.raises(ValueError, match="null byte"):
            subprocess.run([*HUTCH, "init", "--runtime", name], check=False)
        return
    env = {"HOME": str(tmp_path)}
    for command in (
        ("init", "--runtime", name, "--executor", "x"),
        ("runtime", "cache", "clear", "--engine", name),
    ):
        done = hutch(*command, env=env, cwd=tmp_path)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
    assert [*tmp_path.rglob("*")] == []


def test_an_orchestrator_may_ask_anything() -> None:
    """And gets an answer each time; the runtime goes on."""
    short = flow([node("w", "wait", seconds=0)])
    odd: list[Any] = [None, 7, [], "x", {"a": 1}, True, -1, 1e300, "x" * 10_000, "\ud800"]
    with serving() as runtime:
        for value in odd:
            for name in (
                "run_id",
                "user",
                "folder",
                "flows",
                "egress_allow",
                "concurrency",
                "kinds",
                "trace_id",
            ):
                runtime.call("StartRun", ir=short, inputs={}, options={name: value})
            runtime.call("StartRun", ir=value, inputs={}, options={})
            runtime.call("StartRun", ir=short, inputs=value, options=value)
            for method in ("Poll", "Cancel", "Approve"):
                runtime.call(method, run_id=value, step_id=value, approved=value)
        assert runtime.run(short).status == "completed"
