"""Connecting, losing, having back, changing: the life of a set of servers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.mcp_servers.everything import Everything, app, sse_app
from tests.mcp_servers.serving import serving
from tests.upstream.conftest import QUICK, Started, endpoint, program
from tests.waiting import eventually

from hutch.errors import UpstreamError
from hutch.upstream.bounds import Bounds
from hutch.upstream.servers import Upstreams
from hutch.upstream.tools import Server


def only(upstreams: Upstreams) -> Server:
    (server,) = upstreams.servers()
    return server


async def test_lazy_servers_are_started_when_they_are_first_needed(start: Started) -> None:
    upstreams = await start(program("Server"), program("Server", called="other"), eager=False)
    assert [each.state for each in upstreams.servers()] == ["idle", "idle"]
    assert await upstreams.call("other", "act", {}) == "acted"
    assert [each.state for each in upstreams.servers()] == ["idle", "connected"]
    assert len(await upstreams.tools()) == 2
    assert [each.state for each in upstreams.servers()] == ["connected", "connected"]


async def test_servers_are_connected_at_the_same_time(start: Started) -> None:
    slow = [program("Mute", called=f"mute{number}", connect_seconds=1.0) for number in range(5)]
    upstreams = await start(*slow, program("Server"), eager=False)
    began = asyncio.get_running_loop().time()
    await upstreams.start()
    assert asyncio.get_running_loop().time() - began < 4
    assert [each.state for each in upstreams.servers()] == ["failed"] * 5 + ["connected"]


async def test_first_calls_at_the_same_time_start_one_server(start: Started) -> None:
    upstreams = await start(program("Tells"), eager=False)
    found = await asyncio.gather(*(upstreams.call("Tells", "act", {}) for _ in range(5)))
    assert len({each["pid"] for each in found}) == 1


async def test_caller_who_gives_up_does_not_stop_the_connecting(start: Started) -> None:
    upstreams = await start(program("Server"), eager=False)
    impatient = asyncio.ensure_future(upstreams.call("Server", "act", {}))
    await eventually(lambda: only(upstreams).state == "connecting")
    impatient.cancel()
    await eventually(lambda: only(upstreams).state == "connected")


async def test_timeout_includes_connecting_and_says_so(start: Started) -> None:
    upstreams = await start(program("Mute"), eager=False)
    with pytest.raises(UpstreamError, match=r"was not connected within 0\.1 s") as caught:
        await upstreams.call("Mute", "act", {}, timeout=0.1)
    assert caught.value.kind == "timeout"


async def test_server_that_was_killed_is_had_back_at_the_next_call(start: Started) -> None:
    upstreams = await start(program("Tells"))
    revision = upstreams.revision
    first = (await upstreams.call("Tells", "act", {}))["pid"]
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: only(upstreams).error == "it ended (signal 9)")
    assert only(upstreams).state == "failed"
    assert len(await upstreams.tools()) == 1
    second = (await upstreams.call("Tells", "act", {}))["pid"]
    assert second != first
    assert only(upstreams).state == "connected"
    assert upstreams.revision == revision


async def test_server_that_was_lost_is_had_back_by_itself(start: Started) -> None:
    upstreams = await start(program("Tells"), bounds=replace(QUICK, retries=3))
    pid = (await upstreams.call("Tells", "act", {}))["pid"]
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: only(upstreams).state == "failed")
    await eventually(lambda: only(upstreams).state == "connected")
    assert (await upstreams.call("Tells", "act", {}))["pid"] != pid


async def test_attempts_to_have_a_server_back_have_an_end(start: Started, tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"echo x >> {count}; exit 1"
    server = program("Server")
    reach = type(server.reach)(command="sh", args=("-c", script))
    upstreams = await start(replace(server, reach=reach), bounds=replace(QUICK, retries=3))

    def attempts() -> int:
        return len(count.read_text().splitlines())

    await eventually(lambda: attempts() == 4)
    await asyncio.sleep(0.3)
    assert attempts() == 4
    with pytest.raises(UpstreamError, match="not connected: it ended"):
        await upstreams.call("Server", "act", {})
    # One that was tried just now is not tried again for every call.
    for _ in range(5):
        with pytest.raises(UpstreamError, match="not connected: it ended"):
            await upstreams.call("Server", "act", {})
    assert attempts() in (4, 5)


def test_waits_double_up_to_a_bound_and_are_never_the_same_for_all() -> None:
    bounds = Bounds(retry_seconds=1, most_retry_seconds=30)
    for failures, longest in ((0, 1), (1, 2), (4, 16), (5, 30), (1000, 30)):
        waits = {bounds.retry_delay(failures) for _ in range(50)}
        assert max(waits) <= longest
        assert min(waits) >= longest / 2
        assert len(waits) > 40


async def test_what_needs_a_person_is_not_tried_again_by_itself(start: Started) -> None:
    server = program("Server")
    reach = type(server.reach)(command="no-such-program-at-all")
    upstreams = await start(replace(server, reach=reach), bounds=replace(QUICK, retries=5))
    await asyncio.sleep(0.1)
    assert only(upstreams).state == "failed"


async def grows(upstreams: Upstreams) -> None:
    told: list[str] = []
    upstreams.on_change.append(lambda: told.append(upstreams.revision))
    before = upstreams.revision
    name = await upstreams.call("everything", "grow", {})
    await eventually(lambda: told)
    assert told == [upstreams.revision]
    assert upstreams.revision != before
    assert name in {tool.name for tool in await upstreams.tools()}
    assert await upstreams.call("everything", name, {"value": "hi"}) == "hi"


async def test_changed_tools_are_fetched_again_and_change_the_revision(start: Started) -> None:
    await grows(await start(program("everything")))


async def test_changed_tools_are_heard_of_over_http(start: Started) -> None:
    with serving(app(Everything())) as served:
        await grows(await start(endpoint("everything", f"{served.url}/mcp")))


async def test_changed_tools_are_heard_of_over_sse(start: Started) -> None:
    with serving(sse_app(Everything())) as served:
        await grows(await start(endpoint("everything", f"{served.url}/sse", protocol="sse")))


async def test_servers_of_the_newest_protocol_are_spoken_with_and_tell_of_changes(start: Started) -> None:
    upstreams = await start(program("Modern"))
    assert only(upstreams).state == "connected", only(upstreams).error
    before = upstreams.revision
    assert await upstreams.call("Modern", "act", {}) == "acted"
    await eventually(lambda: upstreams.revision != before)
    assert [tool.name for tool in await upstreams.tools()] == ["act", "new_1"]


async def test_revision_is_another_at_each_start_and_the_same_for_the_same_tools(start: Started) -> None:
    one, other = await start(program("Server")), await start(program("Server"))
    assert one.revision != other.revision
    assert one.revision.partition("-")[2] == other.revision.partition("-")[2]
    lazy = await start(program("Server"), eager=False)
    before = lazy.revision
    await lazy.tools()
    assert lazy.revision != before


async def test_listener_that_fails_does_not_stop_the_others(
    start: Started, caplog: pytest.LogCaptureFixture
) -> None:
    upstreams = await start(program("Server"), eager=False)
    told: list[int] = []

    def fails() -> None:
        raise RuntimeError("badly")

    upstreams.on_change += [fails, lambda: told.append(1)]
    with caplog.at_level(logging.ERROR):
        await upstreams.tools()
    assert told == [1]
    assert "a listener to changes failed" in caplog.text


async def test_only_the_tools_that_are_wanted_are_seen_and_can_be_called(
    start: Started, urls: dict[str, str]
) -> None:
    upstreams = await start(
        endpoint("everything", urls["http"], include=("get*", "echo", "nope"), exclude=("get-user",)),
    )
    assert {tool.name for tool in await upstreams.tools()} == {"get_user", "getUserName", "echo"}
    assert only(upstreams).warnings == ("includeTools names 'nope', which it does not have",)
    for hidden in ("get-user", "crash"):
        with pytest.raises(UpstreamError) as caught:
            await upstreams.call("everything", hidden, {})
        assert caught.value.kind == "unknown_tool"


async def test_server_whose_variable_is_not_set_is_not_started(start: Started) -> None:
    problem = "f.json:3: mcpServers.Server.env.KEY: the variable KEY is not set"
    upstreams = await start(program("Server", problem=problem))
    assert (only(upstreams).state, only(upstreams).error) == ("failed", problem)
    with pytest.raises(UpstreamError, match="the variable KEY is not set"):
        await upstreams.call("Server", "act", {})


async def test_closed_set_can_be_closed_again_and_calls_nobody(start: Started) -> None:
    upstreams = await start(program("Server"))
    await upstreams.close()
    await upstreams.close()
    with pytest.raises(UpstreamError) as caught:
        await upstreams.call("Server", "act", {})
    assert caught.value.kind == "not_connected"
