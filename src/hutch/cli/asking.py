"""Asks the person at the terminal whether a script may call a tool."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import termios
import threading

from hutch.doors.toolscript.approvals import Answer, Approval
from hutch.session.jsonvalue import encode_value

_MOST_SHOWN = 400
# What is read when nobody is there any more.
GONE = ""


def is_possible() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def nobody(approval: Approval) -> Answer:
    return Answer("deny", reason="there is no terminal at which somebody could be asked")


class Person:
    """One question at a time, so that no answer is taken for another's."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._lines: asyncio.Queue[str] | None = None
        self._is_gone = False

    async def ask(self, approval: Approval) -> Answer:
        shown = encode_value(approval.arguments).decode()
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
        called = printable(f"{approval.server}__{approval.tool} with {shown}")
        word = await self.answer(
            f"The script calls {called}", "Allow it? [y]es, [n]o, [a]lways in this run: "
        )
        if word in ("y", "yes", "a", "always"):
            return Answer("allow", remember=word.startswith("a"))
        return Answer("deny", reason="by the person at the terminal")

    async def answer(self, question: str, choices: str) -> str:
        """What is typed, in small letters; nothing if nobody is there any more."""
        async with self._turn:
            lines = self._listen()
            print(f"\n{question}", file=sys.stderr)
            print(choices, end="", file=sys.stderr, flush=True)
            line = GONE if self._is_gone else await lines.get()
            self._is_gone = line == GONE
        return line.strip().lower()

    def _listen(self) -> asyncio.Queue[str]:
        """What is typed from now on: an answer to what was not asked yet is none."""
        if self._lines is None:
            self._lines = asyncio.Queue()
            # A daemon, so that a question that nobody answers does not keep us from ending.
            loop = asyncio.get_running_loop()
            threading.Thread(target=_read, args=(loop, self._lines), daemon=True).start()
        with contextlib.suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        while not self._lines.empty():
            self._is_gone |= self._lines.get_nowait() == GONE
        return self._lines


def _read(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    # The loop may be over by the time that something is typed.
    with contextlib.suppress(RuntimeError):
        while line := sys.stdin.readline():
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, GONE)


def printable(text: str) -> str:
    """Without what a terminal would obey: a script chose it."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)
