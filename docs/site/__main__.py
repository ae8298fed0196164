"""Builds the documentation site in build/site with Zensical. Fails if there is a warning."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import deno
from docs.site.pages import MERMAID_FILE, ROOT, write_generated, write_pages
from docs.site.reference import GENERATED

BUILD = ROOT / "build"
PAGES = BUILD / "pages"
SITE = BUILD / "site"
CONFIG = "zensical.toml"


class NpmScript(NamedTuple):
    """A script that pages made by Zensical load from another server. The site has a copy of it instead."""

    package: str
    version: str
    path: str
    sha256: str
    target: str
    """Path on the site."""


# Draws the diagrams of pages.
_MERMAID = NpmScript(
    "mermaid",
    "12.3.0",
    "dist/mermaid.min.js",
    "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3",
    MERMAID_FILE,
)
# Makes the search work on pages that are opened as files, without a server.
_IFRAME_WORKER = NpmScript(
    "iframe-worker",
    "1.0.4",
    "shim/index.js",
    "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609",
    "assets/iframe-worker.js",
)
_IFRAME_WORKER_URL = "https://unpkg.com/iframe-worker/shim"

_SOURCE = r'="((?:https?:)?//[^"]+)"'
# HTML elements that load a file from another server when the page opens.
_LOADED = re.compile(
    rf'<(?:script|img|iframe|source)\b[^>]*\bsrc{_SOURCE}|<link\b[^>]*\brel="stylesheet"[^>]*\bhref{_SOURCE}'
)


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    write_pages(PAGES)
    write_generated(PAGES, GENERATED)
    for script in (_MERMAID, _IFRAME_WORKER):
        shutil.copyfile(_download(script), PAGES / script.target)
    # Zensical treats the folder of its configuration as the project, and writes a cache into it. So it gets a
    # copy of the configuration in the build folder.
    shutil.copyfile(ROOT / "docs/site" / CONFIG, BUILD / CONFIG)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=BUILD, check=False).returncode:
        sys.exit("The site has warnings: see above.")
    for page in SITE.rglob("*.html"):
        local = os.path.relpath(SITE / _IFRAME_WORKER.target, page.parent)
        page.write_text(page.read_text().replace(_IFRAME_WORKER_URL, local))
    if loaded := outside_resources(SITE):
        sys.exit("Pages load something from other servers:\n" + "\n".join(loaded))
    print(f"{len(list(SITE.rglob('*.html')))} pages: {SITE / 'index.html'}")


def outside_resources(site: Path) -> list[str]:
    """Returns the elements of pages that load something from other servers."""
    return [
        f"{page.relative_to(site)}: {found[0]}"
        for page in sorted(site.rglob("*.html"))
        for found in _LOADED.finditer(page.read_text())
    ]


def _download(script: NpmScript) -> Path:
    """Returns the path of the script after Deno has downloaded its npm package, unless that is in Deno's
    cache. Deno uses the same registry as npm.
    """
    folder = Path(os.environ.get("DENO_DIR") or BUILD / "deno").absolute()
    environ = {"DENO_TLS_CA_STORE": "mozilla,system", **os.environ, "DENO_DIR": str(folder)}
    specifier = f"npm:{script.package}@{script.version}"
    command = [deno.find_deno_bin(), "cache", "--quiet", "--no-config", "--no-lock", specifier]
    subprocess.run(command, cwd=ROOT, env=environ, check=True)
    [file] = folder.glob(f"npm/*/{script.package}/{script.version}/{script.path}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != script.sha256:
        sys.exit(f"{file}: expected the SHA-256 {script.sha256}, got {digest}. Delete it and try again.")
    return file


if __name__ == "__main__":
    main()
