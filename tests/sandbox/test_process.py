"""One runner process: it starts or says why not, is bounded, and its end is the end of all in it."""

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
from tests.hostile.processes import gone, groups
from tests.processes import PATIENCE, children, descendants
from tests.sandbox import jails
from tests.sandbox.places import place
from tests.waiting import eventually

import hutch
from hutch.errors import SandboxUnavailable
from hutch.sandbox import cgroup
from hutch.sandbox.jail import Mount
from hutch.sandbox.launcher import Launcher
from hutch.sandbox.meter import process_tree
from hutch.sandbox.process import IMPORTED, OUTPUT_KEPT, REHEARSE, Greeting
from hutch.sandbox.profile import Profile, profile_for
from hutch.session.channel import StreamChannel
from hutch.session.host import Limits
from hutch.settings import load

MIB = 1024 * 1024
ENGINES = ["quickjs", "deno"]
BOMB = "const a = []; for (;;) a.push(new Uint8Array(1024 * 1024).fill(1))"


@pytest.fixture(autouse=True)
async def nothing_left(sandbox: hutch.Hutch) -> AsyncIterator[None]:
    """Whatever a test does, no process and no control group of its own stays."""
    # The spares of those that other tests used may still be on their way.
    await eventually(lambda: is_settled(sandbox))
    before = {*children(os.getpid())}, groups(os.getpid())
    yield
    # Only those that are our own: other tests' database has processes too.
    for child in {*children(os.getpid())} - before[0]:
        for pid in (child, *descendants(child)):
            await gone(pid)
    assert groups(os.getpid()) <= before[1]


def is_settled(h: hutch.Hutch) -> bool:
    assert h._kernel is not None
    pool = h._kernel.pool
    ready = all(len(pool._warm.get(profile, ())) >= count for profile, count in pool._wanted().items())
    return ready and not pool._starting and not pool._leaving


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_runner_that_was_started_is_alive_and_killing_it_ends_everything(engine: str) -> None:
    async with place() as here:
        exits: list[object] = []
        process = await here.launcher.launch(profile_for(engine))
        process.on_exit = exits.append
        below = descendants(process.pid)
        assert process.alive
        assert not process.exited
        assert below
        process.kill()
        process.kill()
        with anyio.fail_after(PATIENCE):
            await process.wait()
        assert process.exited
        assert not process.alive
        assert exits == [process]
        for pid in below:
            await gone(pid)


async def test_what_a_runner_says_right_after_its_greeting_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with much to do reads both at once."""
    (tmp_path / "load.mjs").write_text("export default () => ({});")
    held = bytearray()
    receive = StreamChannel.data_received

    def at_once(channel: StreamChannel, data: bytes) -> None:
        held.extend(data)
        if IMPORTED in held:
            receive(channel, bytes(held))

    monkeypatch.setattr(StreamChannel, "data_received", at_once)
    async with place() as here:
        tree = Mount(str(tmp_path), "/pkg")
        told = {"tree": "/pkg", "package": "any", "env": {}, "network": "off"}
        profile = Profile("npm", mounts=(tree,), permissions=("--allow-env",), told=msgspec.json.encode(told))
        process = await here.launcher.launch(profile)
        assert process.imported
        process.kill()
        await process.wait()


async def test_a_spare_deno_process_is_told_to_rehearse_and_runs_code_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[bytes] = []
    send = StreamChannel.send

    def record(channel: StreamChannel, line: bytes) -> None:
        said.append(line)
        send(channel, line)

    monkeypatch.setattr(StreamChannel, "send", record)
    async with place() as here:
        process = await here.launcher.launch(profile_for("deno"))
        await eventually(lambda: REHEARSE in said)
        session = process.link.open("e", "1 + 1", Limits(), [])
        with anyio.fail_after(PATIENCE):
            assert (await session.wait()).result == 2
        process.kill()
        await process.wait()


async def test_the_host_alone_keeps_a_deno_guests_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.process.BACKSTOP", 3600.0)
    async with place() as here:
        for code in ("await new Promise(() => {})", "for (;;);"):
            process = await here.launcher.launch(profile_for("deno"))
            session = process.link.open("e", code, Limits(timeout_ms=50), [])
            with anyio.fail_after(PATIENCE):
                outcome = await session.wait()
            assert outcome.error is not None
            assert outcome.error.code == "timeout"
            process.kill()
            await process.wait()


async def test_a_program_that_never_greets_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.process.READY_SECONDS", 0.05)
    monkeypatch.setattr(Greeting, "_hear", lambda *_: None)
    async with place() as here:
        with anyio.fail_after(PATIENCE), pytest.raises(SandboxUnavailable, match="did not start"):
            await here.launcher.launch(profile_for("deno"))


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_runner_that_was_killed_from_outside_is_noticed(engine: str) -> None:
    async with place() as here:
        process = await here.launcher.launch(profile_for(engine))
        session = process.link.open("e", "await new Promise(() => {})", Limits(), [])
        process.began(session)
        os.kill(descendants(process.pid)[-1], 9)
        with anyio.fail_after(PATIENCE):
            outcome = await session.wait()
            await process.wait()
        assert outcome.error is not None
        assert outcome.error.code == "internal_error"
        assert outcome.error.message.startswith("The runner was lost: ")
        assert not process.alive


async def test_a_runner_that_does_not_start_says_at_once_what_it_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hutch.sandbox.process.READY_SECONDS", 3600.0)
    broken = Profile("deno", permissions=("--no-such-flag",))
    expected = r"(?s)The deno runner did not start: .*--no-such-flag.*doctor"
    async with place() as here:
        with anyio.fail_after(PATIENCE), pytest.raises(SandboxUnavailable, match=expected):
            await here.launcher.launch(broken)


async def test_a_start_that_is_given_up_leaves_nothing() -> None:
    async with place() as here:
        before = {*descendants(os.getpid())}
        task = asyncio.create_task(here.launcher.launch(profile_for("deno")))
        # Until there is a process, which it does not wait for.
        while not {*descendants(os.getpid())} - before:
            await anyio.lowlevel.checkpoint()
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {*descendants(os.getpid())} <= before


async def test_a_jail_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = cgroup.find()
    jail = jails.container(controller=controller)
    async with place(jail) as here:
        monkeypatch.setattr("hutch.sandbox.jail._TRAMPOLINE", "exit 3")
        with pytest.raises(SandboxUnavailable, match="it said nothing"):
            await here.launcher.launch(profile_for("quickjs"))
        monkeypatch.setattr("subprocess.Popen", _no_more_processes)
        with pytest.raises(SandboxUnavailable, match=r"The sandbox cannot be started: .*no more"):
            await here.launcher.launch(profile_for("quickjs"))


@pytest.mark.parametrize("egress", [None, "somewhere"], ids=["closed", "waits for a network"])
@pytest.mark.parametrize("has_groups", [True, False], ids=["with control groups", "without"])
async def test_a_process_that_cannot_be_watched_is_ended_at_once_with_all_below_it(
    has_groups: bool, egress: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def no_more_descriptors(pid: int) -> int:
        while len(tree := process_tree(pid)) < 2:
            pass
        started.extend(tree)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def never(*_: object) -> Any:
        raise AssertionError("there is no process to open a way for")

    jail = jails.container(controller=cgroup.find() if has_groups else None)
    launcher = Launcher(load({}), jail, never)
    # Who opens doors in jails is there as long as the launcher is.
    launcher.prepare_network()
    before = {*descendants(os.getpid())}
    with monkeypatch.context() as patch:
        patch.setattr("os.pidfd_open", no_more_descriptors)
        with pytest.raises(SandboxUnavailable, match=r"cannot be watched: .*Too many open files"):
            await launcher.launch(Profile("npm", told=b"{}", egress=egress))
        # The event loop has opened what it needs for the first.
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        with pytest.raises(SandboxUnavailable):
            await launcher.launch(Profile("npm", told=b"{}", egress=egress))
    # Not even one that is dead and waits to be reaped.
    assert {*descendants(os.getpid())} <= before
    for pid in started:
        await gone(pid)
    with anyio.fail_after(PATIENCE):
        while len(os.listdir("/proc/self/fd")) > descriptors:  # noqa: PTH208
            await anyio.lowlevel.checkpoint()
    await launcher.close()


def _no_more_processes(*_: object, **__: object) -> None:
    raise OSError(11, "no more processes")


async def test_what_a_process_prints_is_kept_up_to_a_bound() -> None:
    async with place() as here:
        process = await here.launcher.launch(profile_for("deno"))
        code = "Deno.stdout.writeSync(new TextEncoder().encode('é'.repeat(100000))); return 1"
        session = process.link.open("e", code, Limits(), [])
        process.began(session)
        outcome = await session.wait()
        process.ended(outcome, session)
        assert process.output().startswith("é" * 1000)
        assert len(process.output()) <= OUTPUT_KEPT
        assert (outcome.ok, outcome.logs_truncated) == (True, True)
        process.kill()
        await process.wait()


# --- bounds, with control groups and without, in a container and without ---

PLACES = ["with control groups", "without control groups", "without a container"]


@pytest.fixture(params=PLACES)
def jail(request: pytest.FixtureRequest) -> jails.Jail:
    if request.param == PLACES[2]:
        return jails.process()
    controller = cgroup.find() if request.param == PLACES[0] else None
    return jails.container(controller=controller)


@pytest.mark.parametrize("engine", ENGINES)
async def test_limits_hold_wherever_guests_run(jail: jails.Jail, engine: str) -> None:
    async with place(jail) as here:
        assert (await here.run("1 + 1", engine)).result == 2
        bomb = await here.run(BOMB, engine, memory_limit_bytes=48 * MIB, timeout_ms=20_000)
        assert bomb.error is not None
        assert bomb.error.code == "memory_limit"
        loop = await here.run("for (;;);", engine, timeout_ms=150)
        assert loop.error is not None
        assert loop.error.code == "timeout"
        fine = await here.run("new Uint8Array(20 * 1024 * 1024).fill(1).length", engine)
        assert fine.result == 20 * MIB


async def test_files_are_out_of_reach_without_a_container_too() -> None:
    async with place(jails.process()) as here:
        for code in (
            "Deno.readTextFileSync('/etc/passwd')",
            "Deno.env.toObject()",
            "Deno.readDirSync('/').next()",
        ):
            result = await here.run(code, "deno")
            assert result.error is not None
            assert result.error.name == "NotCapable"


async def test_a_shared_process_that_runs_out_of_memory_is_lost_with_the_reason() -> None:
    async with place(quickjs_process_bytes=160 * MIB, quickjs_processes=1) as here:
        result = await here.run(BOMB, memory_limit_bytes=600 * MIB, timeout_ms=20_000)
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert "its process ran out of memory" in result.error.message
        assert (await here.run("1")).result == 1


async def test_an_unprivileged_setting_asks_for_a_container_or_nothing() -> None:
    async with hutch.Hutch(isolation="container") as sandbox:
        assert (await sandbox.run("1")).result == 1
    async with hutch.Hutch(isolation="process") as sandbox:
        for engine in ENGINES:
            assert (await sandbox.run("1", engine=engine)).result == 1
