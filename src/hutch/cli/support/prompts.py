"""Asks the user at the terminal for approvals and secrets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hutch.errors import InvalidInput
from hutch.text import printable

if TYPE_CHECKING:
    from hutch.protocols.toolscript.gateway.approvals import Approval, ApprovalAnswer

END_OF_INPUT = ""

MAX_SECRET_BYTES = 16 * 1024 * 1024

_MAX_SHOWN_CHARS = 400


# --- approvals ---


def can_prompt() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def deny_without_terminal(approval: Approval) -> ApprovalAnswer:
    from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer

    return ApprovalAnswer("deny", reason="there is no terminal to ask for approval")


class TerminalPrompt:
    """Asks one question at a time, so that an answer always belongs to the question on the screen."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._lines: asyncio.Queue[str] | None = None
        self._is_closed = False

    async def ask(self, approval: Approval) -> ApprovalAnswer:
        from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer
        from hutch.session.json_value import encode_value

        arguments = encode_value(approval.arguments).decode()
        if len(arguments) > _MAX_SHOWN_CHARS:
            arguments = f"{arguments[:_MAX_SHOWN_CHARS]}…"
        answer = await self.prompt(
            f"The script calls {approval.server}__{approval.tool} with {arguments}",
            "Allow it? [y]es, [n]o, [a]lways in this run: ",
        )
        if answer in ("y", "yes", "a", "always"):
            return ApprovalAnswer("allow", remember=answer.startswith("a"))
        return ApprovalAnswer("deny", reason="by the person at the terminal")

    async def prompt(self, question: str, choices: str) -> str:
        """Asks a question. Returns the typed line in lower case, or an empty string after the end of
        stdin.
        """
        async with self._lock:
            lines = self._fresh_lines()
            print(f"\n{printable(question)}", file=sys.stderr)
            print(choices, end="", file=sys.stderr, flush=True)
            line = END_OF_INPUT if self._is_closed else await lines.get()
            self._is_closed = line == END_OF_INPUT
        return line.strip().lower()

    def _fresh_lines(self) -> asyncio.Queue[str]:
        """Returns the queue of typed lines, and drops lines that were typed before the question was shown."""
        if self._lines is None:
            self._lines = asyncio.Queue()
            # Read stdin in a daemon thread, so that an unanswered question does not keep the process alive.
            loop = asyncio.get_running_loop()
            threading.Thread(target=_read_stdin, args=(loop, self._lines), daemon=True).start()
        with contextlib.suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        while not self._lines.empty():
            self._is_closed |= self._lines.get_nowait() == END_OF_INPUT
        return self._lines


def _read_stdin(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    # This raises RuntimeError if the event loop was closed before the line was typed. Ignore the line then.
    with contextlib.suppress(RuntimeError):
        while line := sys.stdin.readline():
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, END_OF_INPUT)


def confirm(question: str) -> bool:
    """Asks a question with the default no. Returns False at the end of stdin."""
    with contextlib.suppress(termios.error):
        # Drop input that was typed before the question.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    try:
        return click.confirm(printable(question), err=True)
    except click.Abort:
        print(file=sys.stderr)
        return False


# --- secrets ---


def read_secret(label: str) -> str:
    """Prompts for a secret at a terminal, otherwise reads all of stdin. One line break at the end is
    removed.
    """
    if sys.stdin.isatty():
        return str(click.prompt(printable(label), hide_input=True, err=True))
    data = sys.stdin.buffer.read(MAX_SECRET_BYTES + 1)
    if len(data) > MAX_SECRET_BYTES:
        raise InvalidInput("stdin", f"expected at most {MAX_SECRET_BYTES} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidInput("stdin", "expected text in UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")


def secret_from_env(name: str, label: str) -> str:
    """Returns the value of an environment variable. If it is not set, prompts at a terminal."""
    value = os.environ.get(name)
    if value:
        return value
    if not sys.stdin.isatty():
        raise InvalidInput(name, f"expected {label} in this variable.")
    return str(click.prompt(printable(label), hide_input=True, err=True))


def reject_secret_arguments(arguments: Sequence[str]) -> None:
    """Raises InvalidInput if there are arguments. The message does not repeat them, because they may be
    secrets.
    """
    if arguments:
        raise InvalidInput(
            "value",
            "it cannot be given on the command line, where other users can see it.",
            remedy="Give it on stdin, or leave it out and type it. If it was real, replace it: it may be in "
            "the shell's history.",
        )
