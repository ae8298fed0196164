"""Negotiation, runs and their ends: which code each has, and which exit (sections 5, 6, 9 and 11)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract_proc.runtimes import PATIENCE, Run, bad, one_step

from hutch.doors.rep import negotiation
from hutch.doors.rep.launch import environment
from hutch.doors.rep.orchestrator import FlowDrive, run_flow
from hutch.doors.rep.outcome import RunOptions
from hutch.errors import SettingError


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def cached(home: Path, engine: str = "bad") -> Path:
    return home / ".trace_mind" / "runtime_capabilities" / f"{engine}.json"


async def test_handshake_that_suits_leaves_no_cache(home: Path) -> None:
    end = await Run("").end()
    assert (end.status, end.exit_code, end.runtime_version) == ("completed", 0, "1.2.3")
    assert not cached(home).exists()


async def test_kind_that_the_runtime_has_not_is_exit_3_and_is_kept(home: Path) -> None:
    end = await Run("", flow=one_step("test.stop")).end()
    assert (end.status, end.exit_code) == ("failed", 3)
    assert end.error is not None
    assert (end.error["code"], end.error["data"]["step_id"]) == (1002, "a")
    assert "has no steps of the kind test.stop (is test.step meant?)" in end.error["message"]
    assert end.error["data"]["details"]["missing"] == ["test.stop"]
    kept = json.loads(cached(home).read_text())
    assert kept["step_kinds"] == ["test.step", "dsl.emit", "wait", "code.run"]
    assert kept["version"] == "1.2.3"


async def test_what_is_kept_decides_nothing(home: Path) -> None:
    """Capabilities are asked each time: a cache of a runtime that was worse is no hindrance."""
    cached(home).parent.mkdir(parents=True)
    cached(home).write_text('{"version": "0", "step_kinds": [], "limits": {}}')
    assert (await Run("").end()).exit_code == 0


async def test_control_kinds_need_not_be_declared() -> None:
    assert (await Run("no-kinds", flow=one_step("finish")).end()).exit_code == 0
    assert (await Run("no-kinds").end()).exit_code == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [("no-limits", "limits: expected an object"), ("kinds-are-a-text", "step_kinds: expected")],
)
async def test_capabilities_that_lack_a_field_are_exit_3(home: Path, fault: str, message: str) -> None:
    end = await Run(fault).end()
    assert end.exit_code == 3
    assert end.error is not None
    assert message in end.error["message"]
    assert cached(home).exists()


async def test_cache_that_cannot_be_written_changes_nothing(home: Path) -> None:
    (home / ".trace_mind").write_text("a file where a folder should be")
    assert (await Run("no-kinds").end()).exit_code == 3


async def test_forgetting(home: Path) -> None:
    for engine in ("bad", "worse"):
        negotiation.remember(engine, {"version": "1"})
    assert negotiation.forget("bad") == [cached(home)]
    assert negotiation.forget("bad") == []
    assert negotiation.forget(None) == [cached(home, "worse")]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".hidden", "a..b", "x" * 65, "é"])
def test_engine_that_is_no_name_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="There can be no runtime"):
        negotiation.forget(name)


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
        ("fails-in-words", 2001, 1),
        ("fails-without-a-word", 2001, 1),
        ("fails-oddly", 2001, 1),
    ],
)
async def test_error_has_the_exit_of_its_class(fault: str, code: int, exit_code: int) -> None:
    end = await Run(fault).end()
    assert end.error is not None
    assert (end.status, end.error["code"], end.exit_code) == ("failed", code, exit_code)
    assert set(end.error["data"]) >= {"step_id", "attempt", "retriable", "details"}


async def test_error_of_a_step_is_passed_on() -> None:
    end = await Run("step-fails").end()
    assert end.error is not None
    assert end.error["message"] == "no"
    assert end.error["data"] == {"step_id": "a", "attempt": 2, "retriable": False, "details": {}}


async def test_words_without_a_code_are_the_message() -> None:
    end = await Run("fails-in-words").end()
    assert end.error is not None
    assert end.error["message"] == "just so"


async def told(**options: Any) -> dict[str, Any]:
    """What the runtime found in its environment and in StartRun."""
    drive = FlowDrive(one_step(), {"x": 1}, bad("tells-environment"), RunOptions(**options))
    end = await drive.run()
    assert end.error is not None
    details: dict[str, Any] = end.error["data"]["details"]
    return details


async def test_runtime_gets_the_five_variables_and_the_options() -> None:
    found = await told(run_id="r-1", trace_id="t-1", timeout=PATIENCE, more={"concurrency": 3})
    assert found["options"] == {"run_id": "r-1", "trace_id": "t-1", "allow_shell": False, "concurrency": 3}
    assert found["inputs"] == {"x": 1}
    assert found["environ"] == {
        "TRACE_MIND_RUN_ID": "r-1",
        "TRACE_MIND_TRACE_ID": "t-1",
        "TRACE_MIND_ENGINE_TIMEOUT": "30",
        "TRACE_MIND_ALLOW_SHELL": "0",
        "TRACE_MIND_LOG_JSON": "0",
        "secret": "",
    }


async def test_what_is_allowed_is_said_in_both_places() -> None:
    found = await told(timeout=None, allow_shell=True, log_json=True)
    assert found["options"]["allow_shell"] is True
    assert {
        name: found["environ"][f"TRACE_MIND_{name}"] for name in ("ENGINE_TIMEOUT", "ALLOW_SHELL", "LOG_JSON")
    } == {
        "ENGINE_TIMEOUT": "0",
        "ALLOW_SHELL": "1",
        "LOG_JSON": "1",
    }


async def test_secrets_of_ours_are_not_for_other_peoples_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_API_KEY", "not for you")
    assert (await told())["environ"]["secret"] == ""
    assert os.environ["HUTCH_API_KEY"] == "not for you"
    # Nor what else of ours has a secret in it, by all its names.
    named = ("HUTCH_MASTER_KEY", "HUTCH_CREDENTIAL_KEY", "HUTCH_DATABASE_URL", "HUTCH_PROXY_URL", "PROXY_URL")
    given = {**dict.fromkeys(named, "secret"), "PATH": "/bin"}
    assert "secret" not in environment(given, RunOptions(), is_ours=False).values()
    assert environment(given, RunOptions(), is_ours=True).items() >= given.items()


async def test_two_runs_at_once_have_a_process_each() -> None:
    import asyncio

    ends = await asyncio.gather(*(run_flow(one_step(), {}, bad("late")) for _ in range(4)))
    assert [end.exit_code for end in ends] == [0, 0, 0, 0]
    assert len({end.run_id for end in ends}) == 4
