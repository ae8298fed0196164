"""Builds the guest bundle and the web console with Deno, as a build hook for the wheel and as a command for
`make install`.

The wheel contains the bundles; an editable install uses those in the `dist` folders of the source tree. Each
bundle contains a digest of its sources and is only rebuilt when they have changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCE_SUFFIXES = (".ts", ".tsx", ".js", ".css", ".html", ".svg", ".json", ".lock", ".wasm")
DIGEST_FILE = ".sources"

# Deno's messages for a failed download.
DOWNLOAD_ERRORS = ("error sending request", "Failed caching npm package", "Bad response")


class BundleError(Exception):
    """A bundle cannot be built."""


class Bundle(NamedTuple):
    """Files that Deno builds from TypeScript."""

    title: str
    sources: str
    """Folder of the sources, relative to the root. Its `deno.json` and lock file name the dependencies."""
    main: str
    """Build script, relative to the sources. It gets the output folder as its argument."""
    out: str
    """Folder of the result, relative to the root."""
    files: tuple[str, ...]
    """Files that the build script must write. It may write more."""

    @property
    def folder(self) -> Path:
        return ROOT / self.out

    def is_current(self) -> bool:
        """Whether the bundle in the source tree is complete and was built from these sources by this Deno."""
        digest = self.folder / DIGEST_FILE
        if not all((self.folder / name).is_file() for name in self.files) or not digest.is_file():
            return False
        return digest.read_text() == self._digest()

    def build(self) -> None:
        """Builds the bundle in the source tree and replaces the old one atomically."""
        scratch = ROOT / "build"
        try:
            scratch.mkdir(exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix="bundle-", dir=scratch))
        except OSError as error:
            raise BundleError(f"{self.title} cannot be built: {error}. Make {ROOT} writable.") from None
        try:
            self.write(temporary / "new", cache=scratch / "deno")
            if self.folder.exists():
                self.folder.rename(temporary / "old")
            (temporary / "new").rename(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def write(self, out: Path, *, cache: Path) -> None:
        """Writes the bundle to `out` with Deno. Downloads go to `cache` unless DENO_DIR is set."""
        main = ROOT / self.sources / self.main
        if not main.is_file():
            raise BundleError(f"{self.title} cannot be built: {main} is missing. Use a complete source tree.")
        digest = self._digest()
        out.mkdir(parents=True)
        environ = dict(os.environ, NO_COLOR="1")
        environ["DENO_DIR"] = str(Path(environ.get("DENO_DIR") or cache).absolute())
        environ.setdefault("DENO_NO_UPDATE_CHECK", "1")
        # By default Deno trusts only the authorities of Mozilla. That of a company's proxy is in the system's
        # store.
        environ.setdefault("DENO_TLS_CA_STORE", "mozilla,system")
        command = [_deno(), "run", "-A", "--frozen", str(main.relative_to(ROOT)), str(out)]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BundleError(f"{self.title} cannot be built: Deno does not start: {error}.") from None
        if done.returncode:
            raise BundleError(_explain(self, done))
        if missing := [name for name in self.files if not (out / name).is_file()]:
            raise BundleError(f"{self.title} is incomplete: {main} did not write {', '.join(missing)}.")
        (out / DIGEST_FILE).write_text(digest)

    def _digest(self) -> str:
        """Returns a digest of the version of Deno and of all sources except tests."""
        digest = hashlib.sha256(importlib.metadata.version("deno").encode())
        sources = ROOT / self.sources
        for path in sorted(sources.rglob("*")):
            name = path.relative_to(sources)
            if path.suffix not in SOURCE_SUFFIXES or name.parts[0] in ("dist", "tests"):
                continue
            digest.update(f"\0{name.as_posix()}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()


BUNDLES = (
    Bundle(
        title="The guest bundle",
        sources="src/hutch/guest",
        main="build/main.ts",
        out="src/hutch/guest/dist",
        files=(
            "entry.js",
            "image.bin",
            "image.json",
            "quickjs.js",
            "quickjs.wasm",
            "deno.js",
            "precompile.js",
            "typescript.js",
            "npm.js",
            "zod3.js",
            "script.js",
        ),
    ),
    Bundle(
        title="The web console",
        sources="src/hutch/console/web",
        main="build/main.ts",
        out="src/hutch/console/dist",
        files=("index.html", "main.js", "api.html", "api_docs.js", "style.css"),
    ),
)


class BundleHook(BuildHookInterface[Any]):
    """Adds the bundles to the wheel, or builds them in the source tree for an editable install."""

    PLUGIN_NAME = "custom"

    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            for bundle in BUNDLES:
                if bundle.is_current():
                    continue
                if version == "editable" or (_writable(ROOT) and _writable(bundle.folder.parent)):
                    bundle.build()
                else:
                    self._build_in_temporary_folder(bundle, build_data)
        except BundleError as error:
            self.app.abort(str(error))

    def _build_in_temporary_folder(self, bundle: Bundle, build_data: dict[str, Any]) -> None:
        """Builds a bundle for a wheel from a read-only source tree."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hutch-bundle-")
        folder = Path(self._temporary.name)
        out = folder / bundle.out
        bundle.write(out, cache=folder / "deno")
        (out / DIGEST_FILE).unlink()
        for file in out.iterdir():
            build_data["force_include"][str(file)] = f"{bundle.out.removeprefix('src/')}/{file.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def _deno() -> str:
    """Returns the path of the Deno binary in the `deno` wheel.

    `deno.find_deno_bin()` searches next to the interpreter, where an isolated build has no requirements.
    """
    for file in importlib.metadata.files("deno") or ():
        if file.name == "deno" and file.parent.name == "bin":
            return str(Path(str(file.locate())).resolve())
    raise BundleError(
        "Hutch cannot be built: the `deno` package has no binary for this machine. "
        "There are wheels for Linux (glibc) and macOS on x86-64 and arm64."
    )


def _explain(bundle: Bundle, done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).split("\nStack backtrace")[0].splitlines()
    output = "\n".join(line for line in lines if not line.startswith("Download ")).strip()
    text = f"{bundle.title} cannot be built: Deno exited with {done.returncode}:\n\n{output}\n"
    if "lockfile" in output:
        return f"{text}\n{bundle.sources}/deno.json was changed without its lock file: run `make lock`."
    if any(error in output for error in DOWNLOAD_ERRORS):
        return (
            f"{text}\nDeno could not download the npm packages. "
            "Set NPM_CONFIG_REGISTRY for another registry, HTTPS_PROXY for a proxy, DENO_CERT (a PEM file) "
            "for your own certificate authority; or set DENO_DIR to a folder that already has the packages."
        )
    return text


def _writable(folder: Path) -> bool:
    """Whether files can be created there. Checking permissions would miss read-only mounts."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    try:
        for bundle in BUNDLES:
            if not bundle.is_current():
                print(f"building {bundle.title[0].lower()}{bundle.title[1:]}", file=sys.stderr)
                bundle.build()
    except BundleError as error:
        sys.exit(str(error))
