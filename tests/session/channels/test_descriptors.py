"""File descriptors of the host are closed exactly once: a second close would hit a reused number."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from tests.support.packaged import open_tools

from hutch.session.channels.stream import StreamChannel, connect_pipes


class CheckedFile(io.FileIO):
    """A file that records a close of a descriptor that was closed already."""

    double_closes: list[int]

    def close(self) -> None:
        if self.closefd and not self.closed:
            try:
                os.fstat(self.fileno())
            except OSError:
                self.double_closes.append(self.fileno())
                # The test itself must not close it twice.
                return
        super().close()


def open_checked(handle: int, mode: str, *_: object, closefd: bool = True) -> CheckedFile:
    return CheckedFile(handle, mode, closefd)


@pytest.fixture
def double_closes() -> list[int]:
    """Descriptors that were about to be closed a second time."""
    CheckedFile.double_closes = []
    return CheckedFile.double_closes


async def test_pipes_of_a_channel_are_closed_once(double_closes: list[int]) -> None:
    read, write_end = os.pipe()
    read_end, write = os.pipe()
    channel = StreamChannel(1024)
    await connect_pipes(channel, CheckedFile(read, "rb"), CheckedFile(write, "wb"))
    channel.close()
    # The event loop closes its files a little later.
    await asyncio.sleep(0.01)
    os.close(write_end)
    os.close(read_end)
    assert double_closes == []


async def test_start_of_a_process_with_network_closes_every_descriptor_once(
    double_closes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_tools(tmp_path, max_spares=0) as server:
        assert await server.execute("other") == "other"
        monkeypatch.setattr(os, "fdopen", open_checked)
        assert await server.execute("other") == "other"
        monkeypatch.undo()
    assert double_closes == []
