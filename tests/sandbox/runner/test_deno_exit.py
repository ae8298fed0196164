"""Errors of deno guests that end their own process, and of deno guests that import missing modules."""

from __future__ import annotations

import pytest

import hutch


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("console.log('before'); Deno.exit(3)", 3),
        ("console.log('before'); (await import('node:process')).exit(-1)", 255),
        ("console.log('before'); Deno.exit(128)", 128),
        ("console.log('before'); (await import('node:process')).exit(0)", 0),
        ("console.log('before'); setTimeout(() => Deno.exit(), 1); await new Promise(() => {})", 0),
    ],
)
async def test_code_that_ends_its_process_gets_a_runtime_error(
    sandbox: hutch.Hutch, code: str, exit_code: int
) -> None:
    result = await sandbox.run(code, engine="deno")
    assert result.error is not None
    message = f"The code ended its own process with exit code {exit_code}. Return a value instead"
    assert (result.error.code, result.error.message, result.logs) == ("runtime_error", message, ["before"])


async def test_process_killed_by_a_signal_is_lost_and_the_signal_is_named(sandbox: hutch.Hutch) -> None:
    result = await sandbox.run("(await import('node:process')).abort()", engine="deno")
    assert result.error is not None
    expected = "The runner was lost: its process was ended by signal 6"
    assert (result.error.code, result.error.message) == ("internal_error", expected)


@pytest.mark.parametrize(
    "code",
    [
        "await import('npm:lodash')",
        "import lodash from 'lodash';\nlodash",
        "await import('jsr:@std/path')",
        "await import('https://example.org/a.js')",
    ],
)
async def test_failed_import_says_which_modules_are_available(sandbox: hutch.Hutch, code: str) -> None:
    result = await sandbox.run(code, engine="deno")
    assert result.error is not None
    assert result.error.message.endswith("; here only modules of node: and data: URLs can be imported")


async def test_guest_that_closes_its_connection_is_ended(sandbox: hutch.Hutch) -> None:
    code = """
        const { core } = Deno[Deno.internal];
        const [id] = Object.entries(core.resources()).find(([, name]) => name === "unixStream");
        await core.shutdown(Number(id));
        for (;;);"""
    result = await sandbox.run(code, engine="deno", timeout_ms=30_000)
    assert result.error is not None
    expected = "The runner was lost: it closed its connection but did not exit"
    assert (result.error.code, result.error.message) == ("internal_error", expected)


async def test_error_is_reported_even_if_the_guest_replaced_its_explanation(sandbox: hutch.Hutch) -> None:
    spoil = "Array.prototype[Symbol.iterator] = RegExp.prototype.exec = () => { throw 1 };\n"
    result = await sandbox.run(f"{spoil}null.x", engine="deno")
    assert result.error is not None
    assert (result.error.code, result.error.name) == ("runtime_error", "TypeError")
