"""Secrets from whoever runs a command: from stdin or a prompt that shows nothing, never from argv."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from hutch.errors import InvalidInput

MOST_BYTES = 16 * 1024 * 1024


def read(what: str) -> str:
    """What is typed, or what stdin has up to its end. One line break at the end is not part of it."""
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, err=True))
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InvalidInput("stdin", f"expected at most {MOST_BYTES} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidInput("stdin", "expected text in UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")


def variable(name: str, what: str) -> str:
    """From the environment, or else from the person at the terminal."""
    given = os.environ.get(name)
    if given:
        return given
    if not sys.stdin.isatty():
        raise InvalidInput(name, f"expected {what} in this variable.")
    return str(click.prompt(what, hide_input=True, err=True))


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Raises InvalidInput, which does not repeat what may be a secret."""
    if arguments:
        raise InvalidInput(
            "value",
            "it is not taken from the command line, which others can see.",
            remedy="Give it on stdin, or leave it out and type it. If it was real, replace it: the shell's "
            "history may have it.",
        )
