"""Flows that try to read the host's files and environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hostile.flows.helpers import MARK, run_attempts
from tests.protocols.rep.flow_server import FlowClient, FlowServer
from tests.support.flows import flow, node
from tests.support.processes import hutch

pytestmark = pytest.mark.anyio


async def test_no_step_on_a_server_reads_a_file(server: FlowServer, operator: FlowClient, rid: str) -> None:
    eve = await server.user(operator, f"eve-{rid}", ("rep", "toolscript", "execbox"))
    (server.home / "secret.json").write_text(json.dumps(flow([node("a", "dsl.emit", v=MARK)])))
    paths = [
        str(server.home / "secret.json"),
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
    why = await run_attempts(eve, rid, nodes)
    assert all("flow" in why[f"flow{at}"]["message"] for at in range(len(paths)))
    assert all("may not read files" in why[f"script{at}"]["message"] for at in range(len(paths)))
    assert MARK not in json.dumps(why)


async def test_code_in_a_step_sees_nothing_of_the_host(
    server: FlowServer, operator: FlowClient, rid: str
) -> None:
    eve = await server.user(operator, f"eve-{rid}", ("rep", "execbox"))
    code = """
        const seen = {}
        for (const look of ["Deno.env.toObject()", "process.env", "require('fs').readFileSync('/etc/passwd')",
                            "Deno.readTextFileSync('/proc/self/environ')", "globalThis.step"]) {
            try { seen[look] = String((0, eval)(look)) } catch (error) { seen[look] = null }
        }
        return JSON.stringify(seen)
    """
    nodes = [node("quickjs", "code.run", code=code), node("deno", "code.run", code=code, engine="deno")]
    await eve.start_run(flow(nodes, name="looks"), rid)
    outputs = json.dumps((await eve.wait_for_end(rid))["summary"]["outputs"])
    assert "HUTCH" not in outputs
    assert "root:" not in outputs


async def test_endless_file_is_not_loaded_as_a_flow(tmp_path: Path) -> None:
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
def test_yaml_only_produces_values(tmp_path: Path, text: str) -> None:
    (tmp_path / "flow.yaml").write_text(text)
    done = hutch("flow", "validate", "flow.yaml", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["flow.yaml"]
