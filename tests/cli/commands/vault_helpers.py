"""Credentials and helpers for tests of the vault's commands."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from subprocess import CompletedProcess

Command = Callable[..., "CompletedProcess[str]"]

VALUE = "Bearer sk-0123456789abcdefghijWXYZ"
VECTOR = json.dumps(
    {
        "ciphertext": "iQdNE3ruUSfEK/7bugGb+HhaJUBcFMIdNpApDrRYqpM=",
        "iv": base64.b64encode(bytes(range(12))).decode(),
    }
)


def output_of(done: CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def set_value(command: Command, about: str = "api.example.com::Authorization", value: str = VALUE) -> None:
    done = command("credential", "set", "--user", "bo", about, input=value)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
