"""Input and output files of runs, in real sandboxes."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

import hutch
from hutch.errors import InvalidExecution
from hutch.session.files.model import MAX_NAME_BYTES

LARGE = random.Random(1).randbytes(1_000_000)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
async def h(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[hutch.Hutch]:
    home = str(tmp_path_factory.mktemp("home"))
    async with hutch.Hutch(home=home, max_files=6, max_file_bytes=2_000_000) as opened:
        yield opened


def contents(result: hutch.Result) -> dict[str, tuple[str, bytes]]:
    assert result.error is None, result.error
    return {file.name: (file.mime_type, file.data) for file in result.files}


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_guest_reads_inputs_and_returns_files(
    h: hutch.Hutch, engine: Literal["quickjs", "deno"]
) -> None:
    code = """
        const large = await files.read("large.bin");
        const writing = files.write("copy.bin", large);
        large.fill(0);  // the file has the bytes of the call
        await writing;
        await files.write("upper.csv", (await files.text("data.csv")).toUpperCase());
        await files.write("page", "<p>", "text/HTML");
        await files.write("upper.csv", "B");
        return files.list()
    """
    result = await h.run(code, files={"data.csv": "é", "large.bin": LARGE}, engine=engine, timeout_ms=60_000)
    assert contents(result) == {
        "copy.bin": ("application/octet-stream", LARGE),
        "upper.csv": ("text/csv", b"B"),
        "page": ("text/html", b"<p>"),
    }
    assert result.result == [
        {"name": "data.csv", "size": 2, "type": "text/csv"},
        {"name": "large.bin", "size": len(LARGE), "type": "application/octet-stream"},
    ]
    assert not result.calls


async def test_values_are_displayed_without_waiting(h: hutch.Hutch) -> None:
    code = """
        display({rows: [1, 2]});
        display("text");
        display("data:image/gif;base64,R0lG");
        display(new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]));
        display(new Uint8Array([1]).buffer, "image/webp");
        display(() => 1);
        1
    """
    result = await h.run(code)
    assert contents(result) == {
        "display-1.json": ("application/json", b'{"rows":[1,2]}'),
        "display-2.txt": ("text/plain", b"text"),
        "display-3.gif": ("image/gif", b"GIF"),
        "display-4.png": ("image/png", PNG),
        "display-5.webp": ("image/webp", b"\1"),
    }
    assert result.logs == ["display: The value of display is not JSON-safe: a function"]


async def test_files_of_a_failed_run_are_returned(h: hutch.Hutch) -> None:
    result = await h.run("files.write('a.txt', 'x'); throw new Error('no')")
    assert result.error is not None
    assert [file.name for file in result.files] == ["a.txt"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("files.read('x.csv')", 'expected the name of an input file, got "x.csv"; there are data.csv'),
        ("files.write('../x', '')", "expected a plain file name"),
        ("files.write('.profile', '')", "expected a plain file name"),
        (r"files.write('a\u001b', '')", "expected a plain file name"),
        (f"files.write('a'.repeat({MAX_NAME_BYTES + 1}), '')", "expected a plain file name"),
        ("files.write('x', {})", "expected text, an ArrayBuffer or a view of one, got an object"),
        ("files.write('x', '', 'text')", "type: expected a MIME type"),
        ("files.write('x', '', 'text/html\\r\\nX-Y: z')", "type: expected a MIME type"),
        ("files.write('x', new Uint8Array(2000001))", "the limit is 2000000 (setting max_file_bytes)"),
        ("Promise.all([...'1234567'].map((n) => files.write(n, n)))", "can have 6 output files"),
    ],
)
async def test_invalid_use_names_the_problem(h: hutch.Hutch, call: str, message: str) -> None:
    result = await h.run(f"await {call}", files={"data.csv": b""})
    assert result.error is not None
    assert message in result.error.message
    assert result.error.line == 1


@pytest.mark.parametrize(
    "files",
    [
        ["a"],
        {"a/b": b""},
        {1: b""},
        {"a": 1},
        {"a": "\ud800"},
        {"a": bytes(2_000_001)},
        {str(n): b"" for n in range(7)},
    ],
)
async def test_invalid_inputs_are_refused(h: hutch.Hutch, files: Any) -> None:
    with pytest.raises(InvalidExecution, match="files"):
        await h.run("1", files=files)


async def test_tools_and_inputs_of_the_caller_take_precedence(h: hutch.Hutch) -> None:
    def read(name: str) -> str:
        return f"mine: {name}"

    code = "return [await files.read({name: 'x'}), display]"
    result = await h.run(code, tools={"files": read}, inputs={"display": 1})
    assert result.result == ["mine: x", 1]


async def test_check_knows_the_types(h: hutch.Hutch) -> None:
    good = "const text: string = await files.text('a'); display(text); return files.list()[0].size"
    assert (await h.run(good, files={"a": "x"}, check=True)).result == 1
    bad = await h.run("await files.write(1)", check=True)
    assert bad.error is not None
    assert bad.error.code == "validation_error"


async def test_files_survive_a_suspension(tmp_path: Path) -> None:
    async def ask() -> str:
        raise hutch.Suspend("an answer")

    code = """
        await files.write("before.txt", "1");
        await Promise.all([tools.ask({}), files.write("large.bin", await files.read("large.bin"))]);
        await files.write("after.txt", await files.text("data.csv"));
        return files.list().length
    """
    async with hutch.Hutch(home=str(tmp_path)) as first:
        suspended = await first.run(code, tools=[ask], files={"data.csv": "2", "large.bin": LARGE})
        assert [file.name for file in suspended.files] == ["before.txt", "large.bin"]
    async with hutch.Hutch(home=str(tmp_path)) as second:
        (call,) = suspended.pending_calls
        run = await second.resume(suspended.run_id, {call.call_id: "yes"}, tools=[ask])
        result = await run.result()
    assert result.result == 2
    assert {name: data for name, (_, data) in contents(result).items()} == {
        "before.txt": b"1",
        "large.bin": LARGE,
        "after.txt": b"2",
    }


async def test_number_of_calls_is_limited() -> None:
    async with hutch.Hutch(max_calls=3) as h:
        code = "for (let n = 0; n < 5; n++) await files.write(`${n}`, 'x')"
        result = await h.run(code)
    assert result.error is not None
    assert "More than 3 calls of files in one execution" in result.error.message
    assert len(result.files) == 3


async def test_bytes_that_are_no_base64_are_refused(h: hutch.Hutch) -> None:
    code = """
        Object.prototype.toJSON = function () {
          return 'data' in this ? { ...this, data: 'é', toJSON: undefined } : this;
        };
    """
    result = await h.run(f"{code} await files.write('a', 'x')")
    assert result.error is not None
    assert "files.write: the input is invalid" in result.error.message


async def test_plain_execbox_guests_and_runners_have_no_files() -> None:
    async with hutch.Hutch(runner=[sys.executable, "-m", "hutch", "runner"]) as external:
        assert (await external.run("typeof files + typeof display")).result == "undefinedundefined"
        with pytest.raises(InvalidExecution, match="external runner"):
            await external.run("1", files={"a": b""})
