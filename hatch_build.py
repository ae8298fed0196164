"""Builds the guest bundle with Deno: a build hook for the wheel, and a command for `make install`.

The wheel carries the bundle, an editable install finds it in the tree (`src/hutch/guest/dist`). A bundle
remembers a digest of what it was built from, so that it is built again only when that has changed.
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
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
GUEST = ROOT / "src/hutch/guest"
BUNDLE = GUEST / "dist"
MUST_HAVE = (
    "entry.js",
    "image.bin",
    "image.json",
    "quickjs.js",
    "quickjs.wasm",
    "deno.js",
    "preparing.js",
    "typescript.js",
    "npm.js",
    "script.js",
)
SOURCES = (".ts", ".js", ".json", ".lock", ".wasm")
DIGEST = ".sources"

# What Deno says when it could not fetch, as opposed to when it could not build.
UNREACHABLE = ("error sending request", "Failed caching npm package", "Bad response")


class BundleError(Exception):
    """The guest bundle cannot be built."""


class GuestBundle(BuildHookInterface[Any]):
    """Puts the bundle into the wheel, and beside the sources of an editable install."""

    PLUGIN_NAME = "custom"

    _aside: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            if is_current():
                return
            if version == "editable" or (_writable(ROOT) and _writable(GUEST)):
                build()
            else:
                self._build_aside(build_data)
        except BundleError as error:
            self.app.abort(str(error))

    def _build_aside(self, build_data: dict[str, Any]) -> None:
        """For a wheel from a tree that cannot be written."""
        self._aside = tempfile.TemporaryDirectory(prefix="hutch-guest-")
        aside = Path(self._aside.name)
        bundle(aside / "dist", cache=aside / "deno")
        (aside / "dist" / DIGEST).unlink()
        for file in (aside / "dist").iterdir():
            build_data["force_include"][str(file)] = f"hutch/guest/dist/{file.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._aside is not None:
            self._aside.cleanup()


def is_current() -> bool:
    """Whether the bundle in the tree is whole and was built from these sources by this Deno."""
    digest = BUNDLE / DIGEST
    if not all((BUNDLE / name).is_file() for name in MUST_HAVE) or not digest.is_file():
        return False
    return digest.read_text() == _digest()


def build() -> None:
    """Builds the bundle into the tree: aside first, so that nobody ever sees half of one."""
    scratch = ROOT / "build"
    try:
        scratch.mkdir(exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix="guest-", dir=scratch))
    except OSError as error:
        raise BundleError(f"The guest bundle cannot be built: {error}. Make {ROOT} writable.") from None
    try:
        bundle(aside / "new", cache=scratch / "deno")
        if BUNDLE.exists():
            BUNDLE.rename(aside / "old")
        (aside / "new").rename(BUNDLE)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def bundle(out: Path, *, cache: Path) -> None:
    """Has Deno write the bundle into `out`; `cache` holds its downloads unless DENO_DIR says otherwise."""
    main = GUEST / "build/main.ts"
    if not main.is_file():
        raise BundleError(f"The guest bundle cannot be built: {main} is missing. Take a whole source tree.")
    digest = _digest()
    out.mkdir(parents=True)
    environ = dict(os.environ, NO_COLOR="1")
    environ["DENO_DIR"] = str(Path(environ.get("DENO_DIR") or cache).absolute())
    environ.setdefault("DENO_NO_UPDATE_CHECK", "1")
    # Deno trusts Mozilla's authorities alone unless told so; a company's proxy is known to the system's.
    environ.setdefault("DENO_TLS_CA_STORE", "mozilla,system")
    command = [_deno(), "run", "-A", "--frozen", str(main.relative_to(ROOT)), str(out)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BundleError(f"The guest bundle cannot be built: Deno does not start: {error}.") from None
    if done.returncode:
        raise BundleError(_explain(done))
    if lacking := [name for name in MUST_HAVE if not (out / name).is_file()]:
        raise BundleError(f"The guest bundle is not whole: {main} did not write {', '.join(lacking)}.")
    (out / DIGEST).write_text(digest)


def _digest() -> str:
    """One line for everything that the bundle is made of. Tests are not."""
    digest = hashlib.sha256(importlib.metadata.version("deno").encode())
    for path in sorted(GUEST.rglob("*")):
        name = path.relative_to(GUEST)
        if path.suffix not in SOURCES or name.parts[0] in ("dist", "tests"):
            continue
        digest.update(f"\0{name.as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _deno() -> str:
    """The Deno of the wheel that this build requires.

    `deno.find_deno_bin()` looks beside the interpreter, but an isolated build has its requirements elsewhere.
    """
    for file in importlib.metadata.files("deno") or ():
        if file.name == "deno" and file.parent.name == "bin":
            return str(Path(str(file.locate())).resolve())
    raise BundleError(
        "The guest bundle cannot be built: the `deno` package has no binary for this machine. "
        "There are wheels for Linux (glibc) and macOS on x86-64 and arm64."
    )


def _explain(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).split("\nStack backtrace")[0].splitlines()
    said = "\n".join(line for line in lines if not line.startswith("Download ")).strip()
    text = f"The guest bundle cannot be built: Deno ended with {done.returncode} and said:\n\n{said}\n"
    if "lockfile" in said:
        return f"{text}\nThe guest's deno.json was changed without its lock file: run `make lock`."
    if any(sign in said for sign in UNREACHABLE):
        return (
            f"{text}\nDeno fetches the guest's npm parts from the npm registry and could not. "
            "Set NPM_CONFIG_REGISTRY for another registry, HTTPS_PROXY for a proxy, DENO_CERT (a PEM file) "
            "for a certificate authority of your own; or set DENO_DIR to a folder that already has the parts."
        )
    return text


def _writable(folder: Path) -> bool:
    """Whether files can be made there; asking the permissions alone misses read-only mounts."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    try:
        if not is_current():
            print("building the guest bundle", file=sys.stderr)
            build()
    except BundleError as error:
        sys.exit(str(error))
