"""Runner processes: start, limits, output, end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.hostile.processes import groups, wait_for_exit
from tests.sandbox import jails
from tests.sandbox.sandboxes import open_sandbox
from tests.support.processes import TIMEOUT_SECONDS, children, descendants
from tests.support.waiting import eventually

import hutch
from hutch.errors import SandboxUnavailable
from hutch.sandbox.jail import cgroup
from hutch.sandbox.jail.jail import Mount
from hutch.sandbox.jail.memory_meter import process_tree
from hutch.sandbox.runner.launcher import Launcher
from hutch.sandbox.runner.output_logs import MAX_OUTPUT_BYTES
from hutch.sandbox.runner.process import IMPORTED, WARM_UP, StartupListener
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.session.channels.stream import StreamChannel
from hutch.session.limits import Limits
from hutch.settings import load_settings

MIB = 1024 * 1024
ENGINES = ["quickjs", "deno"]
BOMB = "const a = []; for (;;) a.push(new Uint8Array(1024 * 1024).fill(1))"


@pytest.fixture(autouse=True)
async def leaves_nothing_behind(sandbox: hutch.Hutch) -> AsyncIterator[None]:
    """Checks that a test leaves no process and no control group behind."""
    # Wait until spares of earlier tests have started. Otherwise they would look like processes of this test.
    await eventually(lambda: is_settled(sandbox))
    before = {*children(os.getpid())}, groups(os.getpid())
    yield
    # Ignore processes that existed before the test, such as the database of other tests.
    for child in {*children(os.getpid())} - before[0]:
        for pid in (child, *descendants(child)):
            await wait_for_exit(pid)
    assert groups(os.getpid()) <= before[1]


def is_settled(h: hutch.Hutch) -> bool:
    assert h._kernel is not None
    pool = h._kernel.pool
    ready = all(
        len(pool.runners.warm.get(profile, ())) >= count
        for profile, count in pool.starter.wanted_counts().items()
    )
    return ready and not pool.runners.starting and not pool.runners.ending


@pytest.mark.parametrize("engine", ENGINES)
async def test_killing_a_started_runner_ends_all_its_processes(engine: str) -> None:
    async with open_sandbox() as sandbox:
        exits: list[object] = []
        process = await sandbox.launcher.launch(profile_for(engine))
        process.on_exit = exits.append
        descendant_pids = descendants(process.pid)
        assert process.is_alive
        assert not process.has_exited
        assert descendant_pids
        process.kill()
        process.kill()
        with anyio.fail_after(TIMEOUT_SECONDS):
            await process.wait()
        assert process.has_exited
        assert not process.is_alive
        assert exits == [process]
        for pid in descendant_pids:
            await wait_for_exit(pid)


async def test_lines_that_arrive_with_the_first_one_are_processed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy host reads the two lines at once."""
    (tmp_path / "load.mjs").write_text("export default () => ({});")
    held = bytearray()
    receive = StreamChannel.data_received

    def at_once(channel: StreamChannel, data: bytes) -> None:
        held.extend(data)
        if IMPORTED in held:
            receive(channel, bytes(held))

    monkeypatch.setattr(StreamChannel, "data_received", at_once)
    async with open_sandbox() as sandbox:
        tree = Mount(str(tmp_path), "/pkg")
        payload = {"tree": "/pkg", "package": "any", "env": {}, "network": "off"}
        profile = Profile(
            "npm", mounts=(tree,), permissions=("--allow-env",), stdin_payload=msgspec.json.encode(payload)
        )
        process = await sandbox.launcher.launch(profile)
        assert process.has_imported
        process.kill()
        await process.wait()


async def test_unused_deno_process_is_warmed_up_and_then_runs_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes] = []
    send = StreamChannel.send

    def record(channel: StreamChannel, line: bytes) -> None:
        sent.append(line)
        send(channel, line)

    monkeypatch.setattr(StreamChannel, "send", record)
    async with open_sandbox() as sandbox:
        process = await sandbox.launcher.launch(profile_for("deno"))
        await eventually(lambda: WARM_UP in sent)
        session = process.multiplexer.open("e", "1 + 1", Limits(), [])
        with anyio.fail_after(TIMEOUT_SECONDS):
            assert (await session.wait()).result == 2
        process.kill()
        await process.wait()


async def test_host_alone_enforces_a_deno_guests_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.runner.process.BACKSTOP_SECONDS", 3600.0)
    async with open_sandbox() as sandbox:
        for code in ("await new Promise(() => {})", "for (;;);"):
            process = await sandbox.launcher.launch(profile_for("deno"))
            session = process.multiplexer.open("e", code, Limits(timeout_ms=50), [])
            with anyio.fail_after(TIMEOUT_SECONDS):
                result = await session.wait()
            assert result.error is not None
            assert result.error.code == "timeout"
            process.kill()
            await process.wait()


async def test_runner_that_never_reports_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.runner.process.READY_SECONDS", 0.05)
    monkeypatch.setattr(StartupListener, "_receive", lambda *_: None)
    async with open_sandbox() as sandbox:
        with anyio.fail_after(TIMEOUT_SECONDS), pytest.raises(SandboxUnavailable, match="did not start"):
            await sandbox.launcher.launch(profile_for("deno"))


@pytest.mark.parametrize("engine", ENGINES)
async def test_runner_killed_from_outside_is_noticed(engine: str) -> None:
    async with open_sandbox() as sandbox:
        process = await sandbox.launcher.launch(profile_for(engine))
        session = process.multiplexer.open("e", "await new Promise(() => {})", Limits(), [])
        process.execution_started(session)
        os.kill(descendants(process.pid)[-1], 9)
        with anyio.fail_after(TIMEOUT_SECONDS):
            result = await session.wait()
            await process.wait()
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert result.error.message.startswith("The runner was lost: ")
        assert not process.is_alive


async def test_failed_start_reports_the_output_of_the_runner_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hutch.sandbox.runner.process.READY_SECONDS", 3600.0)
    broken = Profile("deno", permissions=("--no-such-flag",))
    expected = r"(?s)The deno runner did not start: .*--no-such-flag.*doctor"
    async with open_sandbox() as sandbox:
        with anyio.fail_after(TIMEOUT_SECONDS), pytest.raises(SandboxUnavailable, match=expected):
            await sandbox.launcher.launch(broken)


async def test_cancelled_start_leaves_nothing_behind() -> None:
    async with open_sandbox() as sandbox:
        before = {*descendants(os.getpid())}
        task = asyncio.create_task(sandbox.launcher.launch(profile_for("deno")))
        # Wait until the process exists, because launch() does not wait for it.
        while not {*descendants(os.getpid())} - before:
            await anyio.lowlevel.checkpoint()
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {*descendants(os.getpid())} <= before


async def test_jail_that_cannot_be_started_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = cgroup.find_controller()
    jail = jails.container(controller=controller)
    async with open_sandbox(jail) as sandbox:
        monkeypatch.setattr("hutch.sandbox.jail.jail._TRAMPOLINE", "exit 3")
        with pytest.raises(SandboxUnavailable, match="no output"):
            await sandbox.launcher.launch(profile_for("quickjs"))
        monkeypatch.setattr("hutch.sandbox.runner.process.spawn", _no_more_processes)
        with pytest.raises(SandboxUnavailable, match=r"The sandbox cannot be started: .*no more"):
            await sandbox.launcher.launch(profile_for("quickjs"))


@pytest.mark.parametrize("egress", [None, "somewhere"], ids=["closed", "waits for a network"])
@pytest.mark.parametrize("has_groups", [True, False], ids=["with control groups", "without"])
async def test_process_that_cannot_be_watched_is_killed_with_its_descendants(
    has_groups: bool, egress: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def no_more_descriptors(pid: int) -> int:
        while len(tree := process_tree(pid)) < 2:
            pass
        started.extend(tree)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def never(*_: object) -> Any:
        raise AssertionError("there is no jail to open an uplink for")

    jail = jails.container(controller=cgroup.find_controller() if has_groups else None)
    launcher = Launcher(load_settings({}), jail, never)
    # The netns helper lives as long as the launcher. Start the helper before the processes are counted.
    launcher.prepare_network()
    before = {*descendants(os.getpid())}
    with monkeypatch.context() as patch:
        patch.setattr("os.pidfd_open", no_more_descriptors)
        with pytest.raises(SandboxUnavailable, match=r"cannot be watched: .*Too many open files"):
            await launcher.launch(Profile("npm", stdin_payload=b"{}", egress=egress))
        # Count the descriptors after a first launch, because the first launch also opens the descriptors that
        # the event loop needs.
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        with pytest.raises(SandboxUnavailable):
            await launcher.launch(Profile("npm", stdin_payload=b"{}", egress=egress))
    # No process is left, not even a zombie.
    assert {*descendants(os.getpid())} <= before
    for pid in started:
        await wait_for_exit(pid)
    with anyio.fail_after(TIMEOUT_SECONDS):
        while len(os.listdir("/proc/self/fd")) > descriptors:  # noqa: PTH208
            await anyio.lowlevel.checkpoint()
    await launcher.close()


async def _no_more_processes(*_: object, **__: object) -> None:
    raise OSError(11, "no more processes")


async def test_output_of_a_process_is_stored_up_to_a_limit() -> None:
    async with open_sandbox() as sandbox:
        process = await sandbox.launcher.launch(profile_for("deno"))
        code = "Deno.stdout.writeSync(new TextEncoder().encode('é'.repeat(100000))); return 1"
        session = process.multiplexer.open("e", code, Limits(), [])
        process.execution_started(session)
        result = process.execution_ended(await session.wait(), session)
        assert process.output().startswith("é" * 1000)
        assert len(process.output()) <= MAX_OUTPUT_BYTES
        assert (result.ok, result.logs_truncated) == (True, True)
        process.kill()
        await process.wait()


# --- limits, with and without control groups and containers ---

JAILS = ["with control groups", "without control groups", "without a container"]


@pytest.fixture(params=JAILS)
def jail(request: pytest.FixtureRequest) -> jails.Jail:
    if request.param == JAILS[2]:
        return jails.process()
    controller = cgroup.find_controller() if request.param == JAILS[0] else None
    return jails.container(controller=controller)


@pytest.mark.parametrize("engine", ENGINES)
async def test_limits_hold_in_every_jail(jail: jails.Jail, engine: str) -> None:
    async with open_sandbox(jail) as sandbox:
        assert (await sandbox.run("1 + 1", engine)).result == 2
        bomb = await sandbox.run(BOMB, engine, memory_limit_bytes=48 * MIB, timeout_ms=20_000)
        assert bomb.error is not None
        assert bomb.error.code == "memory_limit"
        loop = await sandbox.run("for (;;);", engine, timeout_ms=150)
        assert loop.error is not None
        assert loop.error.code == "timeout"
        fine = await sandbox.run("new Uint8Array(20 * 1024 * 1024).fill(1).length", engine)
        assert fine.result == 20 * MIB


async def test_files_are_unreachable_without_a_container_too() -> None:
    async with open_sandbox(jails.process()) as sandbox:
        for code in (
            "Deno.readTextFileSync('/etc/passwd')",
            "Deno.env.toObject()",
            "Deno.readDirSync('/').next()",
        ):
            result = await sandbox.run(code, "deno")
            assert result.error is not None
            assert result.error.name == "NotCapable"


async def test_shared_process_that_runs_out_of_memory_is_lost_with_the_reason(jail: jails.Jail) -> None:
    async with open_sandbox(jail, quickjs_process_bytes=160 * MIB, quickjs_processes=1) as sandbox:
        result = await sandbox.run(BOMB, memory_limit_bytes=600 * MIB, timeout_ms=20_000)
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert "its process ran out of memory" in result.error.message
        assert (await sandbox.run("1")).result == 1


async def test_isolation_setting_is_applied() -> None:
    async with hutch.Hutch(isolation="container") as sandbox:
        assert (await sandbox.run("1")).result == 1
    async with hutch.Hutch(isolation="process") as sandbox:
        for engine in ENGINES:
            assert (await sandbox.run("1", engine=engine)).result == 1
