"""Tests of `hutch.streams.stdio`. They run in a separate process, because the module changes file descriptors
0 and 1.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from hutch.streams.stdio import take_stdio

stdin, stdout = take_stdio()
assert sys.stdin.read() == ""
print("from Python", flush=True)
subprocess.run(["sh", "-c", "cat; echo from a child"], check=True)
os.write(stdout, os.read(stdin, 100))
"""


def test_only_the_taken_descriptors_reach_the_client() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], input="hello", capture_output=True, text=True, timeout=30, check=True
    )
    assert process.stdout == "hello"
    assert process.stderr.splitlines() == ["from Python", "from a child"]
