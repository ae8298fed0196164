"""Encoding of the results of runs that were suspended."""

from __future__ import annotations

from hutch.kernel.durable.stored_result import decode_result, encode_result
from hutch.session.run import Result


async def test_stored_result_keeps_its_warnings() -> None:
    result = Result(ok=True, result=1, result_json=b"1", warnings=("one", "two"), run_id="run")
    found = await decode_result(await encode_result(result), "run", 1_000)
    assert (found.result, found.warnings) == (1, ["one", "two"])
