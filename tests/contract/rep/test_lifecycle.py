"""Negotiation, runs, error codes and exit codes (sections 5, 6, 9 and 11)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.rep.runtimes import TIMEOUT_SECONDS, FaultyRun, faulty, one_step

from hutch.errors import SettingError
from hutch.protocols.rep.orchestrator import negotiation
from hutch.protocols.rep.orchestrator.options import RunOptions
from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator
from hutch.protocols.rep.orchestrator.process import environment


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def cached(home: Path, engine: str = "bad") -> Path:
    return home / ".trace_mind" / "runtime_capabilities" / f"{engine}.json"


async def test_suitable_runtime_is_not_cached(home: Path) -> None:
    outcome = await FaultyRun("").run()
    assert (outcome.status, outcome.exit_code, outcome.runtime_version) == ("completed", 0, "1.2.3")
    assert not cached(home).exists()


async def test_unsupported_kind_exits_with_3_and_caches_capabilities(home: Path) -> None:
    outcome = await FaultyRun("", flow=one_step("test.stop")).run()
    assert (outcome.status, outcome.exit_code) == ("failed", 3)
    assert outcome.error is not None
    assert (outcome.error["code"], outcome.error["data"]["step_id"]) == (1002, "a")
    assert "has no steps of the kind test.stop (did you mean test.step?)" in outcome.error["message"]
    assert outcome.error["data"]["details"]["missing"] == ["test.stop"]
    capabilities = json.loads(cached(home).read_text())
    assert capabilities["step_kinds"] == ["test.step", "dsl.emit", "wait", "code.run"]
    assert capabilities["version"] == "1.2.3"


async def test_cache_is_not_used_for_negotiation(home: Path) -> None:
    """The orchestrator requests the capabilities for every run, so an outdated cache has no effect."""
    cached(home).parent.mkdir(parents=True)
    cached(home).write_text('{"version": "0", "step_kinds": [], "limits": {}}')
    assert (await FaultyRun("").run()).exit_code == 0


async def test_control_kinds_need_not_be_declared() -> None:
    assert (await FaultyRun("no-kinds", flow=one_step("finish")).run()).exit_code == 0
    assert (await FaultyRun("no-kinds").run()).exit_code == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [("no-limits", "limits: expected an object"), ("kinds-are-a-text", "step_kinds: expected")],
)
async def test_incomplete_capabilities_exit_with_3(home: Path, fault: str, message: str) -> None:
    outcome = await FaultyRun(fault).run()
    assert outcome.exit_code == 3
    assert outcome.error is not None
    assert message in outcome.error["message"]
    assert cached(home).exists()


async def test_unwritable_cache_is_ignored(home: Path) -> None:
    (home / ".trace_mind").write_text("a file where a folder should be")
    assert (await FaultyRun("no-kinds").run()).exit_code == 3


async def test_clear_cache_deletes_one_or_all(home: Path) -> None:
    for engine in ("bad", "worse"):
        negotiation.cache_capabilities(engine, {"version": "1"})
    assert negotiation.clear_cache("bad") == [cached(home)]
    assert negotiation.clear_cache("bad") == []
    assert negotiation.clear_cache(None) == [cached(home, "worse")]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".hidden", "a..b", "x" * 65, "é"])
def test_engine_that_is_not_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="is not a valid name for a runtime"):
        negotiation.clear_cache(name)


@pytest.mark.parametrize(
    ("fault", "code", "exit_code"),
    [
        ("refuses-1001", 1001, 3),
        ("refuses-1002", 1002, 3),
        ("refuses-1003", 1003, 3),
        ("refuses-1999", 1999, 3),
        ("refuses-2001", 2001, 1),
        ("refuses-3001", 3001, 4),
        ("refuses-3002", 3002, 4),
        ("refuses--32602", 3001, 4),
        ("refuses--32601", 3001, 4),
        ("refuses-0", 3001, 4),
        ("step-fails", 2001, 1),
        ("fails-1003", 1003, 3),
        ("fails-3002", 3002, 4),
        ("fails-with-text", 2001, 1),
        ("fails-without-error", 2001, 1),
        ("fails-oddly", 2001, 1),
    ],
)
async def test_exit_code_is_that_of_the_error_class(fault: str, code: int, exit_code: int) -> None:
    outcome = await FaultyRun(fault).run()
    assert outcome.error is not None
    assert (outcome.status, outcome.error["code"], outcome.exit_code) == ("failed", code, exit_code)
    assert set(outcome.error["data"]) >= {"step_id", "attempt", "retriable", "details"}


async def test_error_of_a_step_is_passed_on() -> None:
    outcome = await FaultyRun("step-fails").run()
    assert outcome.error is not None
    assert outcome.error["message"] == "no"
    assert outcome.error["data"] == {"step_id": "a", "attempt": 2, "retriable": False, "details": {}}


async def test_error_text_without_a_code_is_the_message() -> None:
    outcome = await FaultyRun("fails-with-text").run()
    assert outcome.error is not None
    assert outcome.error["message"] == "just so"


async def reported(**options: Any) -> dict[str, Any]:
    """Returns the environment and the StartRun parameters that the runtime got."""
    orchestrator = Orchestrator(one_step(), {"x": 1}, faulty("reports-environment"), RunOptions(**options))
    outcome = await orchestrator.run()
    assert outcome.error is not None
    details: dict[str, Any] = outcome.error["data"]["details"]
    return details


async def test_runtime_gets_the_five_variables_and_the_options() -> None:
    report = await reported(run_id="r-1", trace_id="t-1", timeout=TIMEOUT_SECONDS, extra={"concurrency": 3})
    assert report["options"] == {"run_id": "r-1", "trace_id": "t-1", "allow_shell": False, "concurrency": 3}
    assert report["inputs"] == {"x": 1}
    assert report["environ"] == {
        "TRACE_MIND_RUN_ID": "r-1",
        "TRACE_MIND_TRACE_ID": "t-1",
        "TRACE_MIND_ENGINE_TIMEOUT": "30",
        "TRACE_MIND_ALLOW_SHELL": "0",
        "TRACE_MIND_LOG_JSON": "0",
        "secret": "",
    }


async def test_permissions_are_in_the_environment_and_the_options() -> None:
    report = await reported(timeout=None, allow_shell=True, log_json=True)
    assert report["options"]["allow_shell"] is True
    assert {
        name: report["environ"][f"TRACE_MIND_{name}"]
        for name in ("ENGINE_TIMEOUT", "ALLOW_SHELL", "LOG_JSON")
    } == {
        "ENGINE_TIMEOUT": "0",
        "ALLOW_SHELL": "1",
        "LOG_JSON": "1",
    }


async def test_other_runtimes_do_not_get_hutch_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_API_KEY", "not for you")
    assert (await reported())["environ"]["secret"] == ""
    assert os.environ["HUTCH_API_KEY"] == "not for you"
    # Other people's runtimes get no variable that contains a secret of Hutch.
    names = ("HUTCH_MASTER_KEY", "HUTCH_CREDENTIAL_KEY", "HUTCH_DATABASE_URL", "HUTCH_PROXY_URL", "PROXY_URL")
    environ = {**dict.fromkeys(names, "secret"), "PATH": "/bin"}
    assert "secret" not in environment(environ, RunOptions(), is_builtin=False).values()
    assert environment(environ, RunOptions(), is_builtin=True).items() >= environ.items()


async def test_concurrent_runs_have_separate_processes() -> None:
    runs = (Orchestrator(one_step(), {}, faulty("late")).run() for _ in range(4))
    outcomes = await asyncio.gather(*runs)
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0, 0]
    assert len({outcome.run_id for outcome in outcomes}) == 4
