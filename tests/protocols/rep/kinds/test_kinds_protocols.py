"""Step kinds of other protocols: npm tools, and abilities with a user's credentials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import registry
from tests.protocols.abilities.harness import MARK, PROFILE, TOKEN, FakeApi, ability
from tests.support.flows import StdioRuntime, flow, node, running_runtime

from hutch.protocols.abilities.definition import definition_row, parse_definition
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault.vault import Vault

MODULE = """
const tool = (execute) => ({ execute });
export const echo = tool((params) => { console.log("from the tool"); return params; });
export const fail = tool(() => { throw new TypeError("no such luck"); });
export const env = tool(() => process.env.KEY);
"""
SECRET = "a-secret-for-one-call"


@pytest.fixture(scope="module")
def npm(environment: None) -> Iterator[registry.Registry]:
    with registry.run_registry() as served:
        served.publish("flow-tools", "1.2.3", {"index.js": MODULE})
        yield served


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeApi]:
    with FakeApi() as process:
        yield process


@pytest.fixture(scope="module")
async def runtime(
    anyio_backend: object,
    npm: registry.Registry,
    upstream: FakeApi,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """A runtime with its own home, in which the user bo has an ability and its credentials."""
    home: Path = tmp_path_factory.mktemp("home")
    async with await Store.open(Settings(home=str(home))) as store:
        vault = await Vault.open(store, home, {})
        bo = await vault.add_user("bo")
        await vault.add_user("ann")
        await vault.put_credential(bo, "127.0.0.1", "header", "Authorization", TOKEN)
        await store.abilities.put(
            definition_row(parse_definition(ability(upstream.url)), bo.id, shared=False)
        )
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    own = {"HUTCH_HOME": str(home), "HOME": str(home), "NPM_CONFIG_REGISTRY": npm.url}
    with running_runtime(**proxies, **own, HUTCH_LOG_LEVEL="info") as process:
        yield process
        assert process.close() == b""
        assert process.process.stderr is not None
        log = process.process.stderr.read().decode()
        assert not any(each in log for each in (TOKEN, SECRET, MARK))


def tool(runtime: StdioRuntime, name: str, **params: Any) -> Any:
    return runtime.run(flow([node("s", "tool.execute", package="flow-tools", name=name, **params)]))


def test_npm_tool_is_installed_and_run(runtime: StdioRuntime) -> None:
    ended = tool(runtime, "echo", version="1.2.3", params={"a": ["é", None]})
    assert ended.outputs == {"s": {"a": ["é", None]}}
    assert "from the tool" in ended.logs()
    named = runtime.run(flow([node("s", "tool.execute", package="flow-tools@^1", name="echo")]))
    assert named.outputs == {"s": {}}


def test_env_reaches_only_the_tool(runtime: StdioRuntime) -> None:
    ended = tool(runtime, "env", env={"KEY": "$input.key"}, params={})
    assert ended.error["message"]
    ended = runtime.run(
        flow([node("s", "tool.execute", package="flow-tools", name="env", env={"KEY": "$input.key"})]),
        {"key": SECRET},
    )
    assert ended.outputs == {"s": SECRET}
    assert SECRET not in str(ended.events)


@pytest.mark.parametrize(
    ("name", "code", "attempts"), [("fail", "execution_error", 2), ("nothing", "tool_not_found", 1)]
)
def test_failing_tool_reports_its_error_code(
    runtime: StdioRuntime, name: str, code: str, attempts: int
) -> None:
    ended = runtime.run(flow([node("s", "tool.execute", retries=1, package="flow-tools", name=name)]))
    data = ended.error["data"]
    assert (data["details"]["code"], data["attempt"] + 1) == (code, attempts)


def test_invalid_package_name_is_refused(runtime: StdioRuntime) -> None:
    ended = runtime.run(flow([node("s", "tool.execute", retries=1, package="../x", name="y")]))
    assert ended.error["data"]["attempt"] == 0
    assert "packageName" in ended.error["message"]


def execute(runtime: StdioRuntime, upstream: FakeApi, user: str | None, **params: Any) -> Any:
    ir = flow([node("s", "ability.execute", ability="twitter_get_user_profile", **params)])
    return runtime.run(ir, user=user, egress_allow=[f"127.0.0.1:{upstream.port}"])


def test_ability_runs_with_the_credentials_of_its_user(runtime: StdioRuntime, upstream: FakeApi) -> None:
    ended = execute(runtime, upstream, "bo", params={"username": "elonmusk"})
    assert ended.outputs["s"]["statusCode"] == 200
    assert ended.outputs["s"]["body"] == PROFILE
    assert upstream.seen[-1]["authorization"] == TOKEN
    assert TOKEN not in str(ended)


def test_ability_response_is_transformed(runtime: StdioRuntime, upstream: FakeApi) -> None:
    transform = "(data) => data.followers_count + 1"
    ended = execute(runtime, upstream, "bo", params={"username": "elonmusk"}, transform=transform)
    assert ended.outputs["s"]["body"] == PROFILE["followers_count"] + 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("user", "params", "message"),
    [
        (None, {"username": "elonmusk"}, "ability.execute needs a user"),
        ("eve", {"username": "elonmusk"}, "There is no user 'eve'"),
        ("ann", {"username": "elonmusk"}, "twitter_get_user_profile"),
        ("bo", {}, "username"),
        ("bo", {"username": "unknown"}, "404"),
    ],
)
def test_failing_ability_reports_the_reason(
    runtime: StdioRuntime, upstream: FakeApi, user: str | None, params: dict[str, Any], message: str
) -> None:
    ended = execute(runtime, upstream, user, params=params)
    assert message in ended.error["message"]
    assert MARK not in str(ended)
