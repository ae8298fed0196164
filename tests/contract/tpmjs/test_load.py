"""Many concurrent calls: how many of them are served or refused, and what they leave behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.contract.tpmjs.harness import SyncServer, ToolServer, body, server_with_registry, tool
from tests.hostile.processes import resident_bytes
from tests.support.processes import arguments_of, descendants, wait_until


async def test_full_server_returns_retry_after(sync: SyncServer, tmp_path: Path) -> None:
    async with server_with_registry(
        tmp_path, max_tools=2, max_tools_per_caller=2, egress_allow=sync.address
    ) as server:
        package = server.publish(
            tool(
                "await fetch(`${params.meet}/ready/${params.who}`);"
                "return (await fetch(`${params.meet}/wait/full`)).status"
            )
        )
        calls = [
            asyncio.create_task(server.execute(package, params={"meet": sync.url, "who": user}))
            for user in ("ann", "bob")
        ]
        await sync.wait_ready("ann")
        await sync.wait_ready("bob")
        for path, request in (
            ("/execute-tool", body(package)),
            ("/load-and-describe", body(package)),
            ("/execute-batch", {"tools": [body(package)]}),
        ):
            answer = await server.post(path, request)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "BUSY"), path
            assert int(answer.headers["retry-after"]) >= 1
        answer = await server.post("/execute-tool", body(package), X_TPMJS_Protocol_Version="1.1")
        assert answer.status_code == 503
        assert answer.json()["errorCode"] == "EXECUTOR_UNAVAILABLE"
        assert answer.json()["retryable"] is True
        assert await server.healthy()
        sync.release("full")
        assert [(await call)["output"] for call in calls] == [200, 200]
        assert (await server.execute(server.publish(tool("return 1"))))["output"] == 1


async def test_concurrent_calls_of_a_new_package_install_it_once(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("return params.n"))
    answers = await asyncio.gather(*(spare_server.execute(package, params={"n": n}) for n in range(8)))
    assert [answer["output"] for answer in answers] == [*range(8)]
    assert spare_server.npm.requests.count(f"{package}@1.0.0") == 1


async def test_health_responds_quickly_while_tools_use_all_cpus(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("for (const end = Date.now() + 700; Date.now() < end;); return 1"))
    calls = [asyncio.create_task(spare_server.execute(package)) for _ in range(8)]
    slowest = 0.0
    while not all(call.done() for call in calls):
        began = asyncio.get_running_loop().time()
        assert await spare_server.healthy()
        slowest = max(slowest, asyncio.get_running_loop().time() - began)
        await asyncio.sleep(0.01)
    assert [call.result()["output"] for call in calls] == [1] * 8
    assert slowest < 1


async def test_batch_runs_its_calls_and_returns_each_result(spare_server: ToolServer) -> None:
    good, bad = (
        spare_server.publish(tool("return params.n")),
        spare_server.publish(tool("throw new Error('bad')")),
    )
    answer = await spare_server.post(
        "/execute-batch",
        {"tools": [*(body(good, params={"n": n}) for n in range(4)), body(bad), body(good, "missing")]},
    )
    data = answer.json()
    assert [each.get("output") for each in data["results"]] == [0, 1, 2, 3, None, None]
    assert [each["error"]["code"] for each in data["results"][4:]] == [
        "TOOL_EXECUTION_ERROR",
        "TOOL_NOT_FOUND",
    ]
    assert data["success"] is False


async def test_many_calls_of_many_packages_leave_few_resources(tmp_path: Path) -> None:
    async with server_with_registry(tmp_path, max_spares=2, quickjs_warm=0, deno_warm=0) as server:
        packages = [server.publish(tool("return 'x'.repeat(200_000).length")) for _ in range(5)]

        async def rounds(count: int) -> None:
            for _ in range(count):
                answers = await asyncio.gather(*(server.execute(package) for package in packages))
                assert [answer["output"] for answer in answers] == [200_000] * 5

        await rounds(2)
        before, files = resident_bytes(server.pid), count_files(tmp_path)
        handles = count_handles(server.pid)
        await rounds(6)
        await asyncio.to_thread(wait_until, lambda: len(guests(server.pid)) <= 2)
        assert count_files(tmp_path) == files
        # Some packages may have no cache, because the server creates caches only when the pool has free
        # capacity.
        assert count_caches(tmp_path) <= len(packages)
        assert resident_bytes(server.pid) - before < 8 * 2**20
        await asyncio.to_thread(wait_until, lambda: count_handles(server.pid) <= handles + 4)


def guests(pid: int) -> list[int]:
    """Deno processes of a server."""
    return [each for each in descendants(pid) if arguments_of(each)[:1] == ["/deno"]]


def count_files(home: Path) -> int:
    """Counts the files in the home, except finished and unfinished code caches."""
    apart = (home / "npm" / "caches", home / "npm" / "staging")
    return sum(not any(map(path.is_relative_to, apart)) for path in home.rglob("*"))


def count_caches(home: Path) -> int:
    return len([*home.glob("npm/caches/*/*")])


def count_handles(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])
