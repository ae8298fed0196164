"""Starts runner processes: a socket, a jail around Deno, bounds, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from hutch.sandbox import bundle, identity
from hutch.sandbox.cgroup import Group
from hutch.sandbox.jail import Jail, Launch, Mount
from hutch.sandbox.meter import Meter
from hutch.sandbox.process import RunnerProcess
from hutch.sandbox.profile import Profile
from hutch.session.channel import StreamChannel, connect_pipes
from hutch.settings import MIB, Settings

BUNDLE_TARGET = "/hutch"
SOCKET_TARGET = "/hutch.sock"
MAX_TASKS = 128
_PREFIX = "hutch-run-"


class Launcher:
    """Makes runners of any profile in one jail."""

    def __init__(self, settings: Settings, jail: Jail) -> None:
        self._settings = settings
        self._jail = jail
        self._bundle = bundle.check()
        self._meter = None if jail.controller else Meter()
        self._numbers = itertools.count(1)
        _sweep()
        if jail.controller is not None:
            jail.controller.sweep()
        self._make_folder()

    async def launch(self, profile: Profile) -> RunnerProcess:
        """A runner that is ready. Raises SandboxUnavailable when it cannot be had."""
        if not _is_ours(self._folder):
            # Of a server that runs for weeks, somebody may tidy it away.
            self._make_folder()
        path = self._folder / str(next(self._numbers))
        loop = asyncio.get_running_loop()
        greeting: asyncio.Future[StreamChannel] = loop.create_future()
        channel = StreamChannel(self._settings.max_line_bytes)
        channel.on_line = lambda _: None if greeting.done() else greeting.set_result(channel)
        server = await loop.create_unix_server(lambda: channel, str(path), backlog=1)
        process: RunnerProcess | None = None
        try:
            process = self._spawn(profile, path)
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
            server.close()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _make_folder(self) -> None:
        prefix = f"{_PREFIX}{identity.of_this_host()}-"
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_runtime_dir()))
        # Also for a program that ends without closing us.
        self._remove = weakref.finalize(self, _remove, self._folder, os.getpid())

    def _spawn(self, profile: Profile, socket: Path) -> RunnerProcess:
        runners = Mount(str(self._bundle), BUNDLE_TARGET)
        control = Mount(str(socket), SOCKET_TARGET, writable=True)
        arguments = profile.deno_arguments(self._jail.seen(runners), self._jail.seen(control))
        launch = Launch(
            argv=(self._jail.deno, *arguments),
            mounts=(runners, control, *profile.mounts),
            env=profile.env,
            cwd=profile.cwd,
        )
        group = self._group(profile)
        try:
            return RunnerProcess(profile, self._jail.command(launch, group=group), group, self._meter)
        except BaseException:
            if group is not None:
                group.remove()
            raise

    def _group(self, profile: Profile) -> Group | None:
        if self._jail.controller is None:
            return None
        memory = self._settings.quickjs_process_bytes
        if profile.details.single_use:
            memory = self._settings.most_memory_limit_bytes + 256 * MIB
        return self._jail.controller.create(memory, MAX_TASKS)

    def close(self) -> None:
        if self._jail.controller is not None:
            self._jail.controller.close()
        if self._meter is not None:
            self._meter.close()
        self._remove()


def _remove(folder: Path, owner: int) -> None:
    """What a process that was forked off believes to be its own is its parent's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _runtime_dir() -> str:
    """A socket's path must be short, so not below HUTCH_HOME."""
    preferred = os.environ.get("XDG_RUNTIME_DIR", "")
    return preferred if preferred and os.access(preferred, os.W_OK) else tempfile.gettempdir()


def _sweep() -> None:
    """Removes the folders that hosts which were killed left behind."""
    for folder in Path(_runtime_dir()).glob(f"{_PREFIX}*"):
        if identity.is_gone(folder.name.removeprefix(_PREFIX).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
