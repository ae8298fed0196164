"""Detection of Python code where JavaScript is expected."""

from __future__ import annotations

import time

import pytest

from hutch.session.language import PYTHON_HINT, python_hint

PYTHON = [
    "def f(x):\n    return x + 1\nprint(f(2))",
    "import json\nx = json.dumps({'a': 1})\nprint(x)",
    "x = [i * 2 for i in range(10)]\nx",
    "for i in range(3):\n    total += i",
    "class A(B):\n    pass",
    "if x == 1:\n    y = 2\nelse:\n    y = 3",
    "from os import path",
    "with open('f') as f:  # read it\n    f.read()",
    "async def main():\n    pass",
]
JAVASCRIPT = [
    "const x = ;",
    "import fs from 'node:fs';\nconst x = ;",
    "for (const i of [1, 2]) { console.log(i) ",
    "if (a) {\n  b = {\n    c:\n  }\n}",
    "class A {\n  b:\n}",
    "switch (x) {\n  default:\n",
    "@decorator\nclass A {",
]


@pytest.mark.parametrize("code", PYTHON)
def test_python_is_recognised(code: str) -> None:
    assert python_hint(code, "Unexpected token (1:5)") == PYTHON_HINT


@pytest.mark.parametrize("code", JAVASCRIPT)
def test_wrong_javascript_is_not_called_python(code: str) -> None:
    assert python_hint(code, "Unexpected token (1:5)") is None


def test_unknown_name_has_to_be_one_of_python() -> None:
    code = "x = 5\nprint(x)"
    assert python_hint(code, "print is not defined") == PYTHON_HINT
    assert python_hint(code, "Cannot find name 'print'.") == PYTHON_HINT
    assert python_hint(code, "y is not defined") is None


def test_long_code_does_not_take_long() -> None:
    started = time.monotonic()
    for code in ("x = [" + " for a in " * 200_000, "\n".join(["x = [" + " for a in " * 19] * 10_000)):
        assert python_hint(code) is None
    assert time.monotonic() - started < 2
