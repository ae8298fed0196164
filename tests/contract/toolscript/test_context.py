"""Execution Context: the environment of a script."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import hutch
from tests.support.toolscripts import ScriptEnvironment


async def test_gateway_url_access(scripts: ScriptEnvironment) -> None:
    code = """
        const url = Deno.env.get("TOOLSCRIPT_GATEWAY_URL");
        const { tools } = await import(`${url}/runtime/tools.ts`);
        return [url, await tools.every.zero()];
    """
    assert (await scripts.run(code)).value == ["http://127.0.0.1:4111", "0"]


def test_working_directory(tmp_path: Path) -> None:
    """A script's working directory has the same path as the caller's working directory, but contains no
    files.
    """
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "file").touch()
    (folder / "script.ts").write_text("return [Deno.cwd(), process.cwd()]")
    for arguments in (["-f", "script.ts"], ["return [Deno.cwd(), process.cwd()]"]):
        done = hutch("exec", *arguments, cwd=folder)
        assert (done.returncode, done.stdout) == (0, f'["{folder}","{folder}"]\n'), done.stderr


async def test_no_metadata_injection(scripts: ScriptEnvironment) -> None:
    """Hutch adds no globals to those that `deno run` provides, and only one environment variable."""
    code = """
        const hints = /hutch|toolscript|session|version|timestamp/i;
        const globals = Object.getOwnPropertyNames(globalThis);
        return { args: Deno.args, hints: globals.filter((name) => hints.test(name)), url: import.meta.url };
    """
    ran = await scripts.run(code)
    assert ran.value == {"args": [], "hints": ["sessionStorage"], "url": "file:///tmp/script/script.ts"}
    assert (ran.stdout, ran.stderr) == ("", "")
    assert (await scripts.run("return Deno.args", args=("--a", "b c"))).value == ["--a", "b c"]
