"""Images and other content blocks of MCP in results of code."""

from __future__ import annotations

from typing import Any

from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.protocols.mcp.media import MAX_MEDIA, take_media

PIXEL = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}


def test_blocks_are_replaced_where_they_are() -> None:
    rest = {"deep": [1, {"x": None}]}
    value = {"a": [dict(PIXEL), rest], "b": {"c": dict(PIXEL)}, "d": rest}
    taken = take_media(value)
    assert [block.type for block in taken.blocks] == ["image", "image"]
    note = {**PIXEL, "data": "(content 2 of this answer)"}
    assert taken.value["b"] == {"c": note}
    assert taken.value["a"] == [{**PIXEL, "data": "(content 1 of this answer)"}, rest]
    assert value["a"][0] == PIXEL, "the result itself is not changed"  # type: ignore[index]


@repeat_on_stall
async def test_result_of_many_blocks_does_not_stall() -> None:
    """Copying all values of such a result took 82 ms. So at most MAX_MEDIA values may be copied."""
    value: list[Any] = [dict(PIXEL) for _ in range(60_000)]
    async with LoopStalls() as stalls:
        taken = take_media(value)
    assert len(taken.blocks) == MAX_MEDIA
    assert taken.value[MAX_MEDIA - 1] != PIXEL
    assert all(kept is given for kept, given in zip(taken.value[MAX_MEDIA:], value[MAX_MEDIA:], strict=True))
    stalls.assert_short()
