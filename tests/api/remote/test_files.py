"""Files of `hutch.connect`."""

from __future__ import annotations

import asyncio

import pytest

from hutch.api.remote import Remote
from hutch.errors import InvalidExecution


async def test_files_in_both_directions(h: Remote) -> None:
    large = bytes(range(256)) * 8_000
    code = """
        const data = await files.read("large.bin");
        await files.write("copy.bin", data);
        await files.write("empty.txt", "");
        display({names: files.list().map((file) => [file.name, file.size, file.type])});
        return data.length;"""
    result = await h.run(code, files={"large.bin": large, "é.csv": "a,b", "none": b""})
    assert result.raise_for_error().result == len(large)
    copy, empty, shown = result.files
    assert (copy.name, copy.data, empty.data, empty.mime_type) == ("copy.bin", large, b"", "text/plain")
    assert shown.text is not None
    assert '["é.csv",3,"text/csv"]' in shown.text.replace(" ", "").replace("\n", "")


async def test_run_without_input_files_can_write_files(h: Remote) -> None:
    run = await h.start("await files.write('a', 'b'); throw new Error('no')")
    result = await run.result()
    assert not result.ok
    assert [(file.name, file.data) for file in result.files] == [("a", b"b")]
    assert (await h.run("files.list().length")).result == 0
    assert (await h.session("files").run("typeof files")).result == "undefined"


async def test_limits_of_files_are_those_of_the_server(h: Remote) -> None:
    for files, message in (
        (
            {"a": b"x" * 4_000_001},
            "files: expected at most 4000000 bytes in all files (setting max_file_bytes), got 4000001",
        ),
        ({f"{n}": b"" for n in range(101)}, "files: expected at most 100 files (setting max_files), got 101"),
    ):
        result = await h.run("1", files=files)
        assert result.error is not None
        assert (result.error.code, result.error.message) == ("validation_error", message)
    with pytest.raises(InvalidExecution, match="files: expected a plain file name"):
        await h.run("1", files={"../a": b""})
    result = await h.run("await files.write('a', new Uint8Array(4000001))")
    assert result.error is not None
    assert "max_file_bytes" in result.error.message


async def test_cancelling_during_the_upload_leaves_the_connection_usable(h: Remote) -> None:
    task = asyncio.create_task(h.run("1", files={"a": b"x" * 3_900_000}))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await h.run("2")).result == 2
