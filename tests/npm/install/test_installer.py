"""Properties of an installed package: complete, harmless, read-only, and without traces of the
installation.
"""

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
from tests.npm.conftest import NewPackages
from tests.npm.trees import contents, exports
from tests.support.processes import wait_until
from tests.support.waiting import eventually

from hutch.errors import PackageNotFound
from hutch.npm.install import process
from hutch.npm.package_spec import parse_spec
from hutch.npm.packages import PackageManager
from hutch.sandbox import deno_binary


async def test_package_is_installed_with_its_dependencies(
    npm: registry.Registry, packages: PackageManager
) -> None:
    npm.publish("base", "1.4.0", {"index.js": "export const base = 4;"})
    npm.publish(
        "@made/up",
        files={"index.js": "export * from 'base'; export const up = 1;"},
        dependencies={"base": "^1"},
    )
    package = await packages.get(parse_spec("@made/up"))
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


async def test_package_with_a_deeply_nested_manifest_is_installed(
    npm: registry.Registry, packages: PackageManager
) -> None:
    nested = f'{{"name": "nested", "version": "1.0.0", "main": "index.js", "x": {"[" * 5_000 + "]" * 5_000}}}'
    npm.publish("nested", files={"index.js": "export const one = 1;", "package.json": nested})
    assert (await packages.get(parse_spec("nested"))).version == "1.0.0"


async def test_peers_and_needed_optional_peers_are_installed(
    npm: registry.Registry, packages: PackageManager
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
    package = await packages.get(parse_spec("made-up"))
    assert exports(package.tree) == ["both", "peer"]
    assert npm.count("optional@1.0.0") == 0


async def test_manifest_cannot_request_invalid_dependencies(
    npm: registry.Registry, packages: PackageManager
) -> None:
    manifest = {
        "name": "made-up",
        "version": "1.0.0",
        "type": "module",
        "dependencies": {"../../x": "^1", "y": "file:/etc", "z": "http://127.0.0.1/x.tgz", "fs": "1"},
        "peerDependenciesMeta": {name: {"optional": True} for name in ("../../x", "y", "z", "fs")},
    }
    npm.publish("made-up", files={"package.json": json.dumps(manifest), "index.js": registry.MODULE})
    package = await packages.get(parse_spec("made-up"))
    assert json.loads((package.tree / "package.json").read_bytes())["dependencies"] == {"made-up": "1.0.0"}
    assert exports(package.tree) == ["tool"]


async def test_scripts_never_run(npm: registry.Registry, packages: PackageManager, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    scripts = dict.fromkeys(("preinstall", "install", "postinstall", "prepare"), f"touch {ran}")
    npm.publish("dependency", scripts=scripts)
    npm.publish("made-up", scripts=scripts, dependencies={"dependency": "1"})
    await packages.get(parse_spec("made-up"))
    assert not ran.exists()


async def test_links_devices_and_modes_in_an_archive_are_ignored(
    npm: registry.Registry, packages: PackageManager
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
    package = await packages.get(parse_spec("made-up"))
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
async def test_entry_outside_of_the_package_is_not_extracted(
    npm: registry.Registry, packages: PackageManager, manifest: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "home" / "npm" / "trees").mkdir(parents=True)
    (tmp_path / "home" / "npm" / "trees" / "secret.js").write_text("export const secret = 1;")
    npm.publish("made-up", files={"other.js": ""}, **{"main": None, **manifest})
    package = await packages.get(parse_spec("made-up"))
    result = exports(package.tree)
    assert isinstance(result, str)
    assert "Error" in result


async def test_folder_dependency_is_ignored(
    npm: registry.Registry, packages: PackageManager, tmp_path: Path
) -> None:
    npm.publish("made-up", dependencies={"local": "file:../../../../../etc"})
    package = await packages.get(parse_spec("made-up"))
    assert not (package.tree / "node_modules" / ".deno" / "made-up@1.0.0" / "node_modules" / "local").exists()


async def test_package_without_integrity_is_identified_by_content(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    packages = new_packages()
    keys = set()
    for content in ("export const a = 1;", "export const b = 1;"):
        npm.publish("made-up", files={"index.js": content}, dist={"integrity": None})
        keys.add((await packages.get(parse_spec("made-up", "1.0.0"))).tree.name)
        await packages.remove("made-up")
    assert len(keys) == 2


async def test_shared_dependency_is_not_downloaded_again(
    npm: registry.Registry, packages: PackageManager
) -> None:
    npm.publish("@base/parts", files={"index.js": "export const base = 1;"})
    for name in ("one", "two"):
        npm.publish(
            name, files={"index.js": "export * from '@base/parts';"}, dependencies={"@base/parts": "1"}
        )
    await packages.get(parse_spec("one"))
    # Wait until the document of the dependency is saved. `get` returns before, because the document is saved
    # in the background.
    await eventually(lambda: [*packages._store.metadata._folder.rglob("parts/registry.json")])
    two = (await packages.get(parse_spec("two"))).tree
    assert npm.requests.count("@base/parts@1.0.0") == 1
    # The saved document of `@base/parts` is still fresh, so it was not requested again.
    assert npm.requests[-2:] == ["two", "two@1.0.0"]
    await packages.remove("one")
    assert exports(two) == ["base"]


async def test_programs_of_a_shared_dependency_are_copied(
    npm: registry.Registry, packages: PackageManager
) -> None:
    npm.publish(
        "@base/parts", files={"index.js": registry.MODULE, "run.js": "#!/usr/bin/env node"}, bin="run.js"
    )
    for name in ("one", "two", "three"):
        npm.publish(
            name, files={"index.js": "export * from '@base/parts';"}, dependencies={"@base/parts": "1"}
        )
        assert exports((await packages.get(parse_spec(name))).tree) == ["tool"]
    assert npm.requests.count("@base/parts@1.0.0") == 1


async def test_version_changed_in_the_registry_is_downloaded_again(
    npm: registry.Registry, new_packages: NewPackages
) -> None:
    # With 0 seconds, saved documents are never considered fresh.
    packages = new_packages(latest_seconds=0)
    npm.publish("base", files={"index.js": "export const old = 1;"})
    for name in ("one", "two"):
        npm.publish(name, files={"index.js": "export * from 'base';"}, dependencies={"base": "1"})
    assert exports((await packages.get(parse_spec("one"))).tree) == ["old"]
    npm.publish("base", files={"index.js": "export const changed = 1;"})
    assert exports((await packages.get(parse_spec("two"))).tree) == ["changed"]


async def test_missing_tree_is_not_reused(npm: registry.Registry, new_packages: NewPackages) -> None:
    npm.publish("base", files={"index.js": "export const base = 1;"})
    for name in ("one", "two"):
        npm.publish(name, files={"index.js": "export * from 'base';"}, dependencies={"base": "1"})
    packages = new_packages()
    await packages.get(parse_spec("one"))
    packages._store.unpacked_packages()
    await new_packages().remove("one")
    assert exports((await packages.get(parse_spec("two"))).tree) == ["base"]


async def test_token_reaches_the_registry_and_nothing_else(
    npm: registry.Registry, new_packages: NewPackages, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    npm.token = "made-up-secret"
    npm.publish("base")
    npm.publish("made-up", dependencies={"base": "1"})
    host = npm.url.removeprefix("http:")
    (tmp_path / "user" / ".npmrc").write_text(f"{host}:_authToken=made-up-secret\n")
    packages = new_packages()
    await packages.get(parse_spec("made-up"))
    assert set(npm.tokens) == {"Bearer made-up-secret"}
    npm.token = "another"
    with pytest.raises(PackageNotFound, match=r"refuses .* \(401\)"):
        await packages.get(parse_spec("base"))
    await packages.close()
    assert b"made-up-secret" not in contents(tmp_path / "home")
    assert "made-up-secret" not in caplog.text


async def test_tree_does_not_contain_the_registry_address(
    npm: registry.Registry, packages: PackageManager, tmp_path: Path
) -> None:
    npm.publish("base")
    npm.publish("made-up", dependencies={"base": "1"})
    package = await packages.get(parse_spec("made-up"))
    seen = contents(package.tree)
    assert str(npm.port).encode() not in seen
    assert b"127.0.0.1" not in seen
    assert str(tmp_path).encode() not in seen


async def test_scope_may_have_its_own_registry(
    npm: registry.Registry, packages: PackageManager, tmp_path: Path
) -> None:
    with registry.run_registry(token="t") as company:
        company.publish("@company/tool", dependencies={"base": "1"})
        npm.publish("base")
        host = company.url.removeprefix("http:")
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home" / ".npmrc").write_text(f"@company:registry={company.url}\n{host}:_authToken=t\n")
        assert exports((await packages.get(parse_spec("@company/tool"))).tree) == ["tool"]
        assert npm.requests == ["base", "base@1.0.0"]


async def test_proxy_is_used(
    packages: PackageManager, npm: registry.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.publish("made-up")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://registry.invalid/")
    monkeypatch.setenv("http_proxy", npm.url)
    assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
    assert set(npm.proxied) == {"registry.invalid"}


@pytest.mark.parametrize(
    "variable", ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "DENO_CERT", "npm_config_cafile"]
)
async def test_company_authority_is_trusted_from_any_setting_also_through_a_proxy(
    packages: PackageManager, plain_environment: None, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with registry.run_registry(context=registry.tls()) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://registry.invalid/")
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{npm.port}")
        monkeypatch.setenv(variable, str(registry.AUTHORITY))
        assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"
        assert "registry.invalid:443" in npm.proxied


async def test_several_authorities_are_trusted(
    packages: PackageManager, plain_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_text("")
    with registry.run_registry(context=registry.tls()) as npm:
        npm.publish("made-up")
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", npm.url)
        monkeypatch.setenv("DENO_CERT", str(other))
        monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(registry.AUTHORITY))
        assert (await packages.get(parse_spec("made-up"))).version == "1.0.0"


class FakeInstaller:
    """A script that replaces Deno. The script reports through a pipe, because in a jail it may not be able to
    write files.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        pipe, program = folder / "pipe", folder / "deno"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR)
        program.write_text(f"#!/bin/sh\nexec 9>{pipe}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("HUTCH_DENO", str(program))

    def read_lines(self) -> list[str]:
        """Returns the lines that the script has reported, up to the first empty line."""
        text = b""
        while b"\n\n" not in text:
            assert select.select([self._pipe], [], [], 30)[0], text
            text += os.read(self._pipe, 65536)
        return text.partition(b"\n\n")[0].decode().splitlines()

    def close(self) -> None:
        os.close(self._pipe)


@pytest.fixture
def fake_installer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], FakeInstaller]]:
    made: list[FakeInstaller] = []

    def make(script: str) -> FakeInstaller:
        made.append(FakeInstaller(tmp_path, monkeypatch, script))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=["with_jail", "without_jail"])
def jailed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a test both with and without bubblewrap. Returns whether the installer has a jail."""
    if request.param == "without_jail":
        monkeypatch.setenv("HUTCH_BWRAP", "/nonexistent/bwrap")
    elif not process.is_installer_jail_available():
        pytest.skip("bubblewrap does not work here")
    return bool(request.param == "with_jail")


async def test_installer_gets_only_the_necessary_environment(
    npm: registry.Registry,
    packages: PackageManager,
    monkeypatch: pytest.MonkeyPatch,
    fake_installer: Callable[[str], FakeInstaller],
    jailed: bool,
) -> None:
    npm.publish("made-up")
    program = fake_installer(f'/usr/bin/env >&9; echo >&9; exec {deno_binary.find_deno()} "$@" 9>&-')
    for name in (
        "HUTCH_API_KEY",
        "EXECUTOR_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "LD_LIBRARY_PATH",
        "NODE_OPTIONS",
    ):
        monkeypatch.setenv(name, "made-up-secret")
    await packages.get(parse_spec("made-up"))
    seen = program.read_lines()
    assert "made-up-secret" not in "".join(seen)
    assert {line.partition("=")[0] for line in seen} <= {
        *("DENO_DIR", "DENO_NO_PROMPT", "DENO_NO_UPDATE_CHECK", "DENO_TLS_CA_STORE", "HOME", "NO_COLOR"),
        *("PWD", "_", "SHLVL"),
    }


async def test_cancelled_installer_is_killed_with_its_children(
    new_packages: NewPackages, fake_installer: Callable[[str], FakeInstaller], jailed: bool
) -> None:
    program = fake_installer(
        "trap '' TERM INT; /bin/sleep 1000 & echo $! >&9; echo $$ >&9; echo >&9; wait; wait"
    )
    packages = new_packages(install_seconds=0.5)
    with pytest.raises(PackageNotFound, match="within"):
        await packages.get(parse_spec("made-up"))
    pids = program.read_lines()
    assert len(pids) == 2
    wait_until(lambda: not any(is_running(pid) for pid in pids))


async def test_close_ends_installations_in_progress(
    npm: registry.Registry,
    packages: PackageManager,
    tmp_path: Path,
    fake_installer: Callable[[str], FakeInstaller],
    jailed: bool,
) -> None:
    program = fake_installer("echo $$ >&9; echo >&9; exec /bin/sleep 1000")
    waiting = asyncio.create_task(packages.get(parse_spec("made-up")))
    (pid,) = await asyncio.to_thread(program.read_lines)
    await packages.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wait_until(lambda: not is_running(pid))
    assert not [*(tmp_path / "home" / "npm" / "staging").iterdir()]


async def test_endless_output_is_limited(
    packages: PackageManager, fake_installer: Callable[[str], FakeInstaller]
) -> None:
    fake_installer(
        "/usr/bin/head -c 30000000 /dev/zero | /usr/bin/tr '\\0' 'x'; echo; echo 'error: what'; exit 1"
    )
    with pytest.raises(PackageNotFound, match="could not be installed"):
        await packages.get(parse_spec("made-up"))


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with others"])
async def test_installer_can_write_in_its_own_folder_only(
    npm: registry.Registry, packages: PackageManager, tmp_path: Path, jailed: bool, others: bool
) -> None:
    """The names of packages in the registry, such as `../../../../escape`, make the installer create
    folders.
    """
    if others:
        npm.publish("other")
        await packages.get(parse_spec("other"))
    tarball = registry.pack({"package.json": "{}", "evil.js": ""})
    npm.publish("escape", tarball=tarball)
    npm.publish("../../../../escape", tarball=tarball)
    npm.publish("made-up", dependencies={"../../../../escape": "1"})
    with pytest.raises(PackageNotFound):
        await packages.get(parse_spec("made-up"))
    await packages.close()
    written = contents(tmp_path)
    # Without a jail, the installer may create a folder outside of its own folder, but it unpacks nothing into
    # the new folder.
    assert b"evil.js" not in written
    assert jailed is (b"escape" not in written)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
