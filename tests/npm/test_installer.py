"""What an installed package is: whole, harmless, read-only, and without a trace of how it was had."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.npm import registry
from tests.npm.conftest import NewShelf
from tests.npm.trees import contents, exports
from tests.processes import until
from tests.waiting import eventually

from hutch.errors import PackageNotFound
from hutch.npm import fence
from hutch.npm.names import parse
from hutch.npm.shelf import Shelf
from hutch.sandbox import runtime


async def test_a_package_is_installed_with_all_that_it_needs(npm: registry.Registry, shelf: Shelf) -> None:
    npm.publish("base", "1.4.0", {"index.js": "export const base = 4;"})
    npm.publish(
        "@made/up",
        files={"index.js": "export * from 'base'; export const up = 1;"},
        dependencies={"base": "^1"},
    )
    package = await shelf.get(parse("@made/up"))
    assert (package.name, package.version) == ("@made/up", "1.0.0")
    assert {path.name for path in package.tree.iterdir()} == {
        "package.json",
        "node_modules",
        "deno.lock",
        "load.mjs",
    }
    assert (package.tree / "load.mjs").read_text() == 'export default () => import("@made/up");\n'
    assert json.loads((package.tree / "package.json").read_bytes())["dependencies"] == {"@made/up": "1.0.0"}
    assert package.files == sum(
        1 for path in package.tree.rglob("*") if not path.is_dir() or path.is_symlink()
    )
    assert exports(package.tree) == ["base", "up"]


async def test_peers_are_installed_also_those_that_are_optional_but_needed(
    npm: registry.Registry, shelf: Shelf
) -> None:
    for name in ("peer", "both", "optional"):
        npm.publish(name, files={"index.js": f"export const {name} = 1;"})
    npm.publish(
        "made-up",
        files={"index.js": "export * from 'peer'; export * from 'both';"},
        dependencies={"both": "^1"},
        peerDependencies={"peer": "^1", "both": "^1", "optional": "^1"},
        peerDependenciesMeta={"both": {"optional": True}, "optional": {"optional": True}},
    )
    package = await shelf.get(parse("made-up"))
    assert exports(package.tree) == ["both", "peer"]
    assert npm.count("optional@1.0.0") == 0


async def test_a_manifest_cannot_smuggle_in_what_no_caller_could_ask_for(
    npm: registry.Registry, shelf: Shelf
) -> None:
    manifest = {
        "name": "made-up",
        "version": "1.0.0",
        "type": "module",
        "dependencies": {"../../x": "^1", "y": "file:/etc", "z": "http://127.0.0.1/x.tgz", "fs": "1"},
        "peerDependenciesMeta": {name: {"optional": True} for name in ("../../x", "y", "z", "fs")},
    }
    npm.publish("made-up", files={"package.json": json.dumps(manifest), "index.js": registry.MODULE})
    package = await shelf.get(parse("made-up"))
    assert json.loads((package.tree / "package.json").read_bytes())["dependencies"] == {"made-up": "1.0.0"}
    assert exports(package.tree) == ["tool"]


async def test_scripts_never_run(npm: registry.Registry, shelf: Shelf, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    scripts = dict.fromkeys(("preinstall", "install", "postinstall", "prepare"), f"touch {ran}")
    npm.publish("dependency", scripts=scripts)
    npm.publish("made-up", scripts=scripts, dependencies={"dependency": "1"})
    await shelf.get(parse("made-up"))
    assert not ran.exists()


async def test_links_and_devices_in_an_archive_are_left_out_and_modes_do_not_count(
    npm: registry.Registry, shelf: Shelf
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content, mode in (
            (
                "package.json",
                b'{"name": "made-up", "version": "1.0.0", "type": "module", "main": "index.js"}',
                0o644,
            ),
            ("index.js", registry.MODULE.encode(), 0o6777),
            ("unreadable.js", b"", 0o000),
        ):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
        for name, kind, target in (
            ("passwd", tarfile.SYMTYPE, "/etc/passwd"),
            ("up", tarfile.SYMTYPE, "../../../.."),
            ("hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("pipe", tarfile.FIFOTYPE, ""),
            ("null", tarfile.CHRTYPE, ""),
        ):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)
    npm.publish("made-up", tarball=buffer.getvalue())
    package = await shelf.get(parse("made-up"))
    assert exports(package.tree) == ["tool"]
    assert b"root:" not in contents(package.tree)
    for path in (package.tree, *package.tree.rglob("*")):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            assert stat.S_IMODE(status.st_mode) in (0o555, 0o444), path
        else:
            assert path.resolve().is_relative_to(package.tree)


@pytest.mark.parametrize(
    "manifest",
    [
        {"main": "../../../../../secret.js"},
        {"exports": "./../../../../../secret.js"},
        {"exports": {".": "/secret.js"}},
    ],
    ids=["main", "exports", "absolute"],
)
async def test_an_entry_outside_of_the_package_does_not_get_there(
    npm: registry.Registry, shelf: Shelf, manifest: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "home" / "npm" / "trees").mkdir(parents=True)
    (tmp_path / "home" / "npm" / "trees" / "secret.js").write_text("export const secret = 1;")
    npm.publish("made-up", files={"other.js": ""}, **{"main": None, **manifest})
    package = await shelf.get(parse("made-up"))
    told = exports(package.tree)
    assert isinstance(told, str)
    assert "Error" in told


async def test_a_dependency_in_a_folder_is_left_out(
    npm: registry.Registry, shelf: Shelf, tmp_path: Path
) -> None:
    npm.publish("made-up", dependencies={"local": "file:../../../../../etc"})
    package = await shelf.get(parse("made-up"))
    assert not (package.tree / "node_modules" / ".deno" / "made-up@1.0.0" / "node_modules" / "local").exists()


async def test_what_has_no_integrity_is_kept_by_its_content(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    shelf = new_shelf()
    keys = set()
    for content in ("export const a = 1;", "export const b = 1;"):
        npm.publish("made-up", files={"index.js": content}, dist={"integrity": None})
        keys.add((await shelf.get(parse("made-up", "1.0.0"))).tree.name)
        await shelf.remove("made-up")
    assert len(keys) == 2


async def test_what_one_package_has_brought_is_not_downloaded_for_the_next(
    npm: registry.Registry, shelf: Shelf
) -> None:
    npm.publish("@base/parts", files={"index.js": "export const base = 1;"})
    for name in ("one", "two"):
        npm.publish(
            name, files={"index.js": "export * from '@base/parts';"}, dependencies={"@base/parts": "1"}
        )
    await shelf.get(parse("one"))
    # Documents are kept when the answer is under way already.
    await eventually(lambda: [*shelf._store.documents._folder.rglob("parts/registry.json")])
    two = (await shelf.get(parse("two"))).tree
    assert npm.requests.count("@base/parts@1.0.0") == 1
    # Nor is its document asked for again so soon.
    assert npm.requests[-2:] == ["two", "two@1.0.0"]
    await shelf.remove("one")
    assert exports(two) == ["base"]


async def test_programs_of_a_package_are_no_obstacle_to_the_next(
    npm: registry.Registry, shelf: Shelf
) -> None:
    npm.publish(
        "@base/parts", files={"index.js": registry.MODULE, "run.js": "#!/usr/bin/env node"}, bin="run.js"
    )
    for name in ("one", "two", "three"):
        npm.publish(
            name, files={"index.js": "export * from '@base/parts';"}, dependencies={"@base/parts": "1"}
        )
        assert exports((await shelf.get(parse(name))).tree) == ["tool"]
    assert npm.requests.count("@base/parts@1.0.0") == 1


async def test_a_version_that_the_registry_has_changed_is_not_taken_from_the_shelf(
    npm: registry.Registry, new_shelf: NewShelf
) -> None:
    # No document is believed for longer than it takes.
    shelf = new_shelf(latest_seconds=0)
    npm.publish("base", files={"index.js": "export const old = 1;"})
    for name in ("one", "two"):
        npm.publish(name, files={"index.js": "export * from 'base';"}, dependencies={"base": "1"})
    assert exports((await shelf.get(parse("one"))).tree) == ["old"]
    npm.publish("base", files={"index.js": "export const changed = 1;"})
    assert exports((await shelf.get(parse("two"))).tree) == ["changed"]


async def test_a_tree_that_is_gone_serves_no_other(npm: registry.Registry, new_shelf: NewShelf) -> None:
    npm.publish("base", files={"index.js": "export const base = 1;"})
    for name in ("one", "two"):
        npm.publish(name, files={"index.js": "export * from 'base';"}, dependencies={"base": "1"})
    shelf = new_shelf()
    await shelf.get(parse("one"))
    shelf._store.seeds()
    await new_shelf().remove("one")
    assert exports((await shelf.get(parse("two"))).tree) == ["base"]


# --- the way to the registry ---


async def test_a_token_reaches_the_registry_and_stays_out_of_everything_else(
    npm: registry.Registry, new_shelf: NewShelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    npm.token = "made-up-secret"
    npm.publish("base")
    npm.publish("made-up", dependencies={"base": "1"})
    host = npm.url.removeprefix("http:")
    (tmp_path / "user" / ".npmrc").write_text(f"{host}:_authToken=made-up-secret\n")
    shelf = new_shelf()
    await shelf.get(parse("made-up"))
    assert set(npm.tokens) == {"Bearer made-up-secret"}
    npm.token = "another"
    with pytest.raises(PackageNotFound, match=r"refuses .* \(401\)"):
        await shelf.get(parse("base"))
    await shelf.close()
    assert b"made-up-secret" not in contents(tmp_path / "home")
    assert "made-up-secret" not in caplog.text


async def test_nothing_in_a_tree_tells_of_the_registry(
    npm: registry.Registry, shelf: Shelf, tmp_path: Path
) -> None:
    npm.publish("base")
    npm.publish("made-up", dependencies={"base": "1"})
    package = await shelf.get(parse("made-up"))
    seen = contents(package.tree)
    assert str(npm.port).encode() not in seen
    assert b"127.0.0.1" not in seen
    assert str(tmp_path).encode() not in seen


async def test_a_scope_may_have_a_registry_of_its_own(
    npm: registry.Registry, shelf: Shelf, tmp_path: Path
) -> None:
    with registry.serving(token="t") as company:
        company.publish("@company/tool", dependencies={"base": "1"})
        npm.publish("base")
        host = company.url.removeprefix("http:")
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home" / ".npmrc").write_text(f"@company:registry={company.url}\n{host}:_authToken=t\n")
        assert exports((await shelf.get(parse("@company/tool"))).tree) == ["tool"]
        assert npm.requests == ["base", "base@1.0.0"]


async def test_a_proxy_is_used(shelf: Shelf, npm: registry.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    npm.publish("made-up")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://registry.invalid/")
    monkeypatch.setenv("http_proxy", npm.url)
    assert (await shelf.get(parse("made-up"))).version == "1.0.0"
    assert set(npm.proxied) == {"registry.invalid"}


@pytest.mark.parametrize(
    "variable", ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "DENO_CERT", "npm_config_cafile"]
)
async def test_a_companys_authority_is_trusted_however_it_is_named_also_through_a_proxy(
    shelf: Shelf, plain_environment: None, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with registry.serving(context=registry.tls()) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://registry.invalid/")
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{npm.port}")
        monkeypatch.setenv(variable, str(registry.AUTHORITY))
        assert (await shelf.get(parse("made-up"))).version == "1.0.0"
        assert "registry.invalid:443" in npm.proxied


async def test_several_authorities_are_trusted_at_once(
    shelf: Shelf, plain_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_text("")
    with registry.serving(context=registry.tls()) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", npm.url)
        monkeypatch.setenv("DENO_CERT", str(other))
        monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(registry.AUTHORITY))
        assert (await shelf.get(parse("made-up"))).version == "1.0.0"


# --- the process ---


class StandIn:
    """A program in Deno's place, which may say something although it can write no file: through a pipe."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        pipe, program = folder / "pipe", folder / "deno"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR)
        program.write_text(f"#!/bin/sh\nexec 9>{pipe}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("HUTCH_DENO", str(program))

    def heard(self) -> list[str]:
        """Lines, up to an empty one."""
        text = b""
        while b"\n\n" not in text:
            assert select.select([self._pipe], [], [], 30)[0], text
            text += os.read(self._pipe, 65536)
        return text.partition(b"\n\n")[0].decode().splitlines()

    def close(self) -> None:
        os.close(self._pipe)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], StandIn]]:
    made: list[StandIn] = []

    def make(script: str) -> StandIn:
        made.append(StandIn(tmp_path, monkeypatch, script))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=["fenced", "unfenced"])
def fenced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With bubblewrap, and as it is without."""
    if request.param == "unfenced":
        monkeypatch.setenv("HUTCH_BWRAP", "/nonexistent/bwrap")
    elif not fence.holds():
        pytest.skip("there is no bubblewrap that works here")
    return bool(request.param == "fenced")


async def test_the_installer_sees_only_what_it_needs_of_our_environment(
    npm: registry.Registry,
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    stand_in: Callable[[str], StandIn],
    fenced: bool,
) -> None:
    npm.publish("made-up")
    program = stand_in(f'/usr/bin/env >&9; echo >&9; exec {runtime.locate()} "$@" 9>&-')
    for name in (
        "HUTCH_API_KEY",
        "EXECUTOR_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "LD_LIBRARY_PATH",
        "NODE_OPTIONS",
    ):
        monkeypatch.setenv(name, "made-up-secret")
    await shelf.get(parse("made-up"))
    seen = program.heard()
    assert "made-up-secret" not in "".join(seen)
    assert {line.partition("=")[0] for line in seen} <= {
        *("DENO_DIR", "DENO_NO_PROMPT", "DENO_NO_UPDATE_CHECK", "DENO_TLS_CA_STORE", "HOME", "NO_COLOR"),
        *("PWD", "_", "SHLVL"),
    }


async def test_an_installer_that_is_given_up_is_gone_with_all_that_it_started(
    new_shelf: NewShelf, stand_in: Callable[[str], StandIn], fenced: bool
) -> None:
    program = stand_in("trap '' TERM INT; /bin/sleep 1000 & echo $! >&9; echo $$ >&9; echo >&9; wait; wait")
    shelf = new_shelf(install_seconds=0.5)
    with pytest.raises(PackageNotFound, match="within"):
        await shelf.get(parse("made-up"))
    pids = program.heard()
    assert len(pids) == 2
    until(lambda: not any(is_running(pid) for pid in pids))


async def test_closing_the_shelf_ends_what_is_under_way(
    npm: registry.Registry, shelf: Shelf, tmp_path: Path, stand_in: Callable[[str], StandIn], fenced: bool
) -> None:
    program = stand_in("echo $$ >&9; echo >&9; exec /bin/sleep 1000")
    waiting = asyncio.create_task(shelf.get(parse("made-up")))
    (pid,) = await asyncio.to_thread(program.heard)
    await shelf.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    until(lambda: not is_running(pid))
    assert not [*(tmp_path / "home" / "npm" / "staging").iterdir()]


async def test_an_installer_that_prints_without_end_is_bounded(
    shelf: Shelf, stand_in: Callable[[str], StandIn]
) -> None:
    stand_in("/usr/bin/head -c 30000000 /dev/zero | /usr/bin/tr '\\0' 'x'; echo; echo 'error: what'; exit 1")
    with pytest.raises(PackageNotFound, match="could not be installed"):
        await shelf.get(parse("made-up"))


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with others"])
async def test_the_installer_can_write_in_its_own_folder_only(
    npm: registry.Registry, shelf: Shelf, tmp_path: Path, fenced: bool, others: bool
) -> None:
    """It believes what a registry calls things, and makes folders of these names."""
    if others:
        npm.publish("other")
        await shelf.get(parse("other"))
    tarball = registry.pack({"package.json": "{}", "evil.js": ""})
    npm.publish("escape", tarball=tarball)
    npm.publish("../../../../escape", tarball=tarball)
    npm.publish("made-up", dependencies={"../../../../escape": "1"})
    with pytest.raises(PackageNotFound):
        await shelf.get(parse("made-up"))
    await shelf.close()
    written = contents(tmp_path)
    # Without a fence there may be such folders, but nothing is unpacked into them.
    assert b"evil.js" not in written
    assert fenced is (b"escape" not in written)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
