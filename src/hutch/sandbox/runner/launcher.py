"""Starts runner processes in jails and cleans up after them."""

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

from hutch.sandbox.deno_binary import bundle_folder
from hutch.sandbox.jail.cgroup import Cgroup
from hutch.sandbox.jail.jail import Jail, Launch, Mount
from hutch.sandbox.jail.memory_meter import MemoryMeter
from hutch.sandbox.jail.netns import NetnsListener
from hutch.sandbox.runner.pipes import RunnerListener, WakeupFile
from hutch.sandbox.runner.priority import set_background
from hutch.sandbox.runner.process import (
    PROCESS_OVERHEAD_BYTES,
    READY_SECONDS,
    RunnerProcess,
    StartupListener,
    Uplink,
)
from hutch.sandbox.runner.profile import Profile
from hutch.sandbox.temp_dirs import make_temp_dir, remove_stale_temp_dirs
from hutch.session.channels.low_latency import LowLatencyChannel
from hutch.session.channels.stream import StreamChannel, connect_pipes
from hutch.settings import MIB, Settings

BUNDLE_TARGET = "/hutch"
SOCKET_TARGET = "/hutch.sock"
MAX_TASKS = 128

OpenUplink = Callable[[socket.socket, socket.socket | None, Hashable], Awaitable[Uplink]]
"""Function that serves the listener, and the DNS socket if there is one, inside a jail according to the
profile's `egress`.
"""


class Launcher:
    def __init__(self, settings: Settings, jail: Jail, open_uplink: OpenUplink | None = None) -> None:
        self._settings = settings
        self._jail = jail
        self._open_uplink = open_uplink
        self._netns_listener = NetnsListener()
        self._bundle = bundle_folder()
        self._meter = None if jail.controller else MemoryMeter()
        self._socket_numbers = itertools.count(1)
        remove_stale_temp_dirs()
        if jail.controller is not None:
            jail.controller.sweep()
        self._make_folder()

    async def launch(self, profile: Profile, *, in_background: bool = False) -> RunnerProcess:
        """Starts a runner, and returns it when it is ready. Raises SandboxUnavailable."""
        if not _is_own_folder(self._folder):
            # Make the folder again. A cleanup job of the system may remove it while a server runs for weeks.
            self._make_folder()
        path = self._folder / str(next(self._socket_numbers))
        wakeup_file = WakeupFile() if profile.engine_spec.polls_wakeup_file else None
        max_line_bytes = self._settings.max_line_bytes
        channel = (
            StreamChannel(max_line_bytes)
            if wakeup_file is None
            else LowLatencyChannel(max_line_bytes, wakeup_file)
        )
        startup = StartupListener(channel)
        listener: RunnerListener | None = None
        process: RunnerProcess | None = None
        try:
            listener = RunnerListener(channel, path)
            process = await self._spawn(profile, path, wakeup_file, in_background=in_background)
            if process.stdout is not None:
                await connect_pipes(channel, process.stdout)
            await process.wait_ready(startup)
            await listener.close()
            return process
        except BaseException:
            channel.close()
            if process is not None:
                process.kill()
                await process.wait()
            if listener is not None:
                await listener.close()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def prepare_network(self) -> None:
        if self._jail.isolation == "container":
            self._netns_listener.start()

    def _make_folder(self) -> None:
        self._folder = make_temp_dir()
        # The finalizer also removes the folder if the program ends without calling close().
        self._remove_folder = weakref.finalize(self, _remove_folder, self._folder, os.getpid())

    async def _spawn(
        self, profile: Profile, path: Path, wakeup_file: WakeupFile | None, *, in_background: bool
    ) -> RunnerProcess:
        if profile.egress is None or self._open_uplink is None or self._jail.isolation != "container":
            return await self._start(profile, path, wakeup_file, in_background=in_background)
        self._netns_listener.start()
        info, info_writer = os.pipe()
        block, unblock = os.pipe()
        process: RunnerProcess | None = None
        child = 0
        try:
            try:
                process = await self._start(
                    profile,
                    path,
                    wakeup_file,
                    in_background=in_background,
                    info_fd=info_writer,
                    block_fd=block,
                )
            except BaseException:
                os.close(info)
                raise
            finally:
                os.close(info_writer)
                os.close(block)
            child = await _child_pid(info)
            if not child:
                raise await process.start_failure()
            dns: socket.socket | None = None
            if profile.engine_spec.resolves_names:
                listener, dns = await self._netns_listener.listen_with_dns(child, profile.uplink_port)
            else:
                listener = await self._netns_listener.listen(child, profile.uplink_port)
            process.uplink = await self._open_uplink(listener, dns, profile.egress)
            os.write(unblock, b"go")
            return process
        except BaseException:
            if child:
                # Kill the jail itself, because it does not die with its parent while it waits for --block-fd.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if process is not None:
                process.kill()
                await process.wait()
            raise
        finally:
            os.close(unblock)

    async def _start(
        self,
        profile: Profile,
        path: Path,
        wakeup_file: WakeupFile | None,
        *,
        in_background: bool,
        info_fd: int | None = None,
        block_fd: int | None = None,
    ) -> RunnerProcess:
        bundle_mount = Mount(str(self._bundle), BUNDLE_TARGET)
        socket_mount = Mount(str(path), SOCKET_TARGET, writable=True)
        guest_path = self._jail.guest_path
        in_container = self._jail.isolation == "container"
        arguments = profile.deno_arguments(
            guest_path(bundle_mount),
            guest_path(socket_mount),
            guest_path=guest_path,
            in_container=in_container,
        )
        launch = Launch(
            argv=(self._jail.deno, *arguments),
            mounts=(bundle_mount, socket_mount, *profile.mounts),
            env=profile.env,
            cwd=profile.cwd,
            scratch=profile.scratch,
        )
        group = self._create_group(profile)
        try:
            command = self._jail.command(launch, group=group, info_fd=info_fd, block_fd=block_fd)
            process = RunnerProcess(profile, group, self._meter)
            await process.start(command, wakeup_file, self._max_bytes(profile))
        except BaseException:
            if group is not None:
                group.kill()
                group.remove()
            raise
        if in_background:
            process.is_in_background = set_background(process.pid, in_background=True)
        return process

    def _create_group(self, profile: Profile) -> Cgroup | None:
        if self._jail.controller is None:
            return None
        memory = self._max_bytes(profile) or self._settings.max_memory_limit_bytes + 256 * MIB
        return self._jail.controller.create(memory, MAX_TASKS)

    def _max_bytes(self, profile: Profile) -> int:
        """Returns the memory limit of a process from its start, or 0 if each execution sets its own limit."""
        if profile.memory_bytes:
            return profile.memory_bytes + PROCESS_OVERHEAD_BYTES
        return 0 if profile.engine_spec.own_process else self._settings.quickjs_process_bytes

    async def close(self) -> None:
        await self._netns_listener.close()
        if self._jail.controller is not None:
            self._jail.controller.close()
        if self._meter is not None:
            self._meter.close()
        self._remove_folder()


async def _child_pid(info: int) -> int:
    """Reads the pid of the jail from bubblewrap's output, `{"child-pid": 123, …}`, and closes `info`. Returns
    0 if bubblewrap exits without this output.
    """
    loop = asyncio.get_running_loop()
    output = bytearray()
    finished: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        data = os.read(info, 4096)
        output.extend(data)
        if not data and not finished.done():
            finished.set_result(None)

    # Do not use a pipe transport. uvloop's transport closes the descriptor a second time, when another file
    # may have the same number (uvloop issue 763). asyncio's transport closes the descriptor only on request,
    # so the caller could not treat both alike.
    loop.add_reader(info, read)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await finished
        return int(msgspec.json.decode(output)["child-pid"])
    except (TimeoutError, ValueError, TypeError, KeyError):
        return 0
    finally:
        loop.remove_reader(info)
        os.close(info)


def _remove_folder(folder: Path, owner: int) -> None:
    """Removes the folder, except in a forked child, because the folder belongs to the parent."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
