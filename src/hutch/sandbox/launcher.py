"""Starts runner processes: a socket, a jail around Deno, bounds, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import weakref
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path

import msgspec

from hutch.sandbox import bundle, temporary
from hutch.sandbox.bell import Bell
from hutch.sandbox.cgroup import Group
from hutch.sandbox.jail import Jail, Launch, Mount
from hutch.sandbox.meter import Meter
from hutch.sandbox.network import Doorkeeper
from hutch.sandbox.process import OVERHEAD_BYTES, READY_SECONDS, Greeting, RunnerProcess, Way
from hutch.sandbox.profile import Profile
from hutch.session.channel import StreamChannel, connect_pipes
from hutch.session.prompt import PromptChannel
from hutch.settings import MIB, Settings

BUNDLE_TARGET = "/hutch"
SOCKET_TARGET = "/hutch.sock"
MAX_TASKS = 128

Network = Callable[[socket.socket, Hashable], Awaitable[Way]]
"""Opens a way out behind a listener in a jail, as far as a profile's `egress` says."""


class Launcher:
    """Makes runners of any profile in one jail."""

    def __init__(self, settings: Settings, jail: Jail, network: Network | None = None) -> None:
        self._settings = settings
        self._jail = jail
        self._network = network
        self._doorkeeper = Doorkeeper()
        self._bundle = bundle.check()
        self._meter = None if jail.controller else Meter()
        self._numbers = itertools.count(1)
        temporary.sweep()
        if jail.controller is not None:
            jail.controller.sweep()
        self._make_folder()

    async def launch(self, profile: Profile) -> RunnerProcess:
        """A runner that is ready. Raises SandboxUnavailable when it cannot be had."""
        if not _is_ours(self._folder):
            # Of a server that runs for weeks, somebody may tidy it away.
            self._make_folder()
        path = self._folder / str(next(self._numbers))
        bell = Bell() if profile.details.watches_bell else None
        most = self._settings.max_line_bytes
        channel = StreamChannel(most) if bell is None else PromptChannel(most, bell)
        greeting = Greeting(channel)
        server: asyncio.Server | None = None
        process: RunnerProcess | None = None
        try:
            server = await _listening(channel, path)
            process = await self._spawn(profile, path, bell)
            if process.stdout is not None:
                await connect_pipes(channel, process.stdout)
            await process.ready(greeting)
            return process
        except BaseException:
            channel.close()
            if process is not None:
                process.kill()
                await process.wait()
            raise
        finally:
            if server is not None:
                server.close()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def prepare_network(self) -> None:
        """Has at hand what the first jail with a network would have to wait for."""
        if self._jail.isolation == "container":
            self._doorkeeper.start()

    def _make_folder(self) -> None:
        self._folder = temporary.make_folder()
        # Also for a program that ends without closing us.
        self._remove = weakref.finalize(self, _remove, self._folder, os.getpid())

    async def _spawn(self, profile: Profile, path: Path, bell: Bell | None) -> RunnerProcess:
        if profile.egress is None or self._network is None or self._jail.isolation != "container":
            return self._start(profile, path, bell)
        # It starts at the same time as the jail that it is to open a door in.
        self._doorkeeper.start()
        info, told = os.pipe()
        wait, go = os.pipe()
        process: RunnerProcess | None = None
        child = 0
        try:
            try:
                process = self._start(profile, path, bell, info_fd=told, block_fd=wait)
            except BaseException:
                os.close(info)
                raise
            finally:
                os.close(told)
                os.close(wait)
            child = await _child_pid(info)
            if not child:
                raise await process.not_started()
            listener = await self._doorkeeper.listen(child, profile.port)
            process.way = await self._network(listener, profile.egress)
            os.write(go, b"go")
            return process
        except BaseException:
            if child:
                # As long as it waits for us, it does not die with its parent.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if process is not None:
                process.kill()
                await process.wait()
            raise
        finally:
            os.close(go)

    def _start(
        self,
        profile: Profile,
        path: Path,
        bell: Bell | None,
        *,
        info_fd: int | None = None,
        block_fd: int | None = None,
    ) -> RunnerProcess:
        runners = Mount(str(self._bundle), BUNDLE_TARGET)
        control = Mount(str(path), SOCKET_TARGET, writable=True)
        seen = self._jail.seen
        contained = self._jail.isolation == "container"
        arguments = profile.deno_arguments(seen(runners), seen(control), seen=seen, contained=contained)
        launch = Launch(
            argv=(self._jail.deno, *arguments),
            mounts=(runners, control, *profile.mounts),
            env=profile.env,
            cwd=profile.cwd,
            scratch=profile.scratch,
        )
        group = self._group(profile)
        try:
            command = self._jail.command(launch, group=group, info_fd=info_fd, block_fd=block_fd)
            return RunnerProcess(profile, command, group, self._meter, bell)
        except BaseException:
            if group is not None:
                group.remove()
            raise

    def _group(self, profile: Profile) -> Group | None:
        if self._jail.controller is None:
            return None
        memory = self._settings.quickjs_process_bytes
        if profile.memory_bytes:
            memory = profile.memory_bytes + OVERHEAD_BYTES
        elif profile.details.own_process:
            memory = self._settings.most_memory_limit_bytes + 256 * MIB
        return self._jail.controller.create(memory, MAX_TASKS)

    async def close(self) -> None:
        await self._doorkeeper.close()
        if self._jail.controller is not None:
            self._jail.controller.close()
        if self._meter is not None:
            self._meter.close()
        self._remove()


async def _listening(channel: StreamChannel, path: Path) -> asyncio.Server:
    """Goes through even if it is cancelled: half-way, nobody would know what to close."""
    loop = asyncio.get_running_loop()
    beginning = loop.create_task(loop.create_unix_server(lambda: channel, str(path), backlog=1))
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        await asyncio.wait((beginning,))
        if not beginning.cancelled() and beginning.exception() is None:
            beginning.result().close()
        raise


async def _child_pid(info: int) -> int:
    """What bubblewrap says of itself, once it has: `{"child-pid": 123, …}`; 0 if it is gone before.

    Closes `info`.
    """
    loop = asyncio.get_running_loop()
    said = bytearray()
    over: asyncio.Future[None] = loop.create_future()

    def hear() -> None:
        data = os.read(info, 4096)
        said.extend(data)
        if not data and not over.done():
            over.set_result(None)

    # Not as a transport: uvloop's closes the descriptor once more, when the number may be another's (its
    # issue 763), and asyncio's only if it is told to.
    loop.add_reader(info, hear)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await over
        return int(msgspec.json.decode(said)["child-pid"])
    except (TimeoutError, ValueError, TypeError, KeyError):
        return 0
    finally:
        loop.remove_reader(info)
        os.close(info)


def _remove(folder: Path, owner: int) -> None:
    """What a process that was forked off believes to be its own is its parent's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
