"""A real browser, and servers for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import deno
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.support.processes import ServeProcess, running_server

WEB = Path(__file__).parents[3] / "src/hutch/console/web"
# For slow machines. It only matters for tests that fail.
TIMEOUT_MS = 20_000
expect.set_options(timeout=TIMEOUT_MS)
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "the tests need Chromium: run `apt install chromium`"
    # Playwright's event loop runs in this thread until the `with` block ends, and asynchronous tests of other
    # modules cannot run meanwhile. So each module has its own browser.
    with sync_playwright() as playwright:
        # Chromium refuses to run its own sandbox as root. It only opens pages of this machine.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def server(home: str) -> Iterator[ServeProcess]:
    """A server without a key that records everything."""
    with running_server(HUTCH_HOME=home, HUTCH_RECORD="full") as running:
        yield running


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[OpenPage]:
    """Opens pages, and fails the test if one of them raised an error or loaded something from elsewhere."""
    errors: list[str] = []

    def open_one(url: str) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: note(message.type, message.text))
        page.goto(url)
        return page

    def note(kind: str, text: str) -> None:
        # Failed requests are reported as console errors. Tests of failures expect them.
        if kind == "error" and "Failed to load resource" not in text:
            errors.append(text)

    yield open_one
    assert errors == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which finds problems for people with assistive technology."""
    out = tmp_path_factory.mktemp("axe") / "axe.js"
    options = ["--quiet", "--platform=browser", "-o", str(out)]
    command = [deno.find_deno_bin(), "bundle", *options, "tests/axe.ts"]
    environ = {**os.environ, "DENO_DIR": os.environ.get("DENO_DIR", str(WEB.parents[3] / "build/deno"))}
    environ.setdefault("DENO_TLS_CA_STORE", "mozilla,system")
    subprocess.run(command, cwd=WEB, env=environ, check=True)
    return out.read_text()
