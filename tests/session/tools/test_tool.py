"""Context of a tool call. Tools can also be called outside of a run."""

from __future__ import annotations

import pydoc

import pytest

import hutch


@hutch.tool
async def shout(text: str, context: hutch.ToolContext) -> str:
    context.progress({"text": text})
    return "cancelled" if context.cancelled.is_set() else text.upper()


async def test_function_with_a_context_can_be_called_in_a_test() -> None:
    assert await shout("a", hutch.ToolContext()) == "A"


@pytest.mark.parametrize("name", [name for name in hutch.__all__ if not name.startswith("_")])
def test_public_names_have_help(name: str) -> None:
    assert pydoc.render_doc(getattr(hutch, name))
