"""File descriptors of the host are closed once: closed twice, the second time hits whoever got the number."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from tests.sandbox.test_spares import tools

from hutch.session.channel import StreamChannel, connect_pipes


class Watched(io.FileIO):
    """A file that notes when somebody else has closed its descriptor already."""

    strays: list[int]

    def close(self) -> None:
        if self.closefd and not self.closed:
            try:
                os.fstat(self.fileno())
            except OSError:
                self.strays.append(self.fileno())
                # Nobody is hurt by the test itself.
                return
        super().close()


def opened(handle: int, mode: str, *_: object, closefd: bool = True) -> Watched:
    return Watched(handle, mode, closefd)


@pytest.fixture
def strays() -> list[int]:
    """Descriptors that were about to be closed a second time."""
    Watched.strays = []
    return Watched.strays


async def test_pipes_of_a_channel_are_closed_once(strays: list[int]) -> None:
    read, theirs = os.pipe()
    ours, write = os.pipe()
    channel = StreamChannel(1024)
    await connect_pipes(channel, Watched(read, "rb"), Watched(write, "wb"))
    channel.close()
    # A loop closes what it was given a little later.
    await asyncio.sleep(0.01)
    os.close(theirs)
    os.close(ours)
    assert strays == []


async def test_start_of_a_process_with_a_network_closes_what_it_opened_once(
    strays: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tools(tmp_path, max_spares=0) as made:
        assert await made.execute("other") == "other"
        monkeypatch.setattr(os, "fdopen", opened)
        assert await made.execute("other") == "other"
        monkeypatch.undo()
    assert strays == []
