"""A real browser, and servers for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import deno
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize, expect, sync_playwright
from tests.support.processes import ServeProcess, running_server

WEB = Path(__file__).parents[3] / "src/hutch/console/web"
# A long timeout, because the machine may be slow. Only a failing test waits for the whole timeout.
TIMEOUT_MS = 20_000
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
expect.set_options(timeout=TIMEOUT_MS)
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "the tests need Chromium: run `apt install chromium`"
    # Each module has its own browser: until the `with` block ends, Playwright's event loop occupies this
    # thread, and asynchronous tests of other modules could not run.
    with sync_playwright() as playwright:
        # Chromium refuses to run its own sandbox as root. The browser does not need the sandbox, because it
        # only opens pages of this machine.
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


@pytest.fixture(scope="module")
def shared_page(browser: Browser) -> Iterator[Page]:
    """A page that all tests of a module use, one after the other. For a new page, Chromium would start a
    process and compile the scripts again, which takes a second or two of CPU time.
    """
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(TIMEOUT_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(shared_page: Page) -> Iterator[Page]:
    """The shared page, without any state of earlier tests. Fails the test if the page raised an error."""
    errors: list[str] = []

    def on_error(error: Error) -> None:
        errors.append(str(error))

    def on_message(message: ConsoleMessage) -> None:
        # The browser also reports failed requests as console errors. Some tests cause such failures.
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    shared_page.on("pageerror", on_error)
    shared_page.on("console", on_message)
    yield shared_page
    shared_page.remove_listener("pageerror", on_error)
    shared_page.remove_listener("console", on_message)
    shared_page.evaluate("localStorage.clear(), sessionStorage.clear()")
    # Leave the page, so that the next test loads it again even if its URL differs only in the fragment.
    shared_page.goto("about:blank")
    shared_page.context.clear_cookies()
    shared_page.set_viewport_size(VIEWPORT)
    shared_page.emulate_media(color_scheme="null")
    assert errors == []


@pytest.fixture
def open_page(page: Page) -> OpenPage:
    """Opens a URL in the page."""

    def open_url(url: str) -> Page:
        page.goto(url)
        return page

    return open_url


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which finds accessibility problems."""
    out = tmp_path_factory.mktemp("axe") / "axe.js"
    options = ["--quiet", "--platform=browser", "-o", str(out)]
    command = [deno.find_deno_bin(), "bundle", *options, "tests/axe.ts"]
    environ = {**os.environ, "DENO_DIR": os.environ.get("DENO_DIR", str(WEB.parents[3] / "build/deno"))}
    environ.setdefault("DENO_TLS_CA_STORE", "mozilla,system")
    subprocess.run(command, cwd=WEB, env=environ, check=True)
    return out.read_text()
