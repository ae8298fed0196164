"""Each view opens, fits on a phone's screen, and has no serious accessibility problem."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import httpx2
import pytest
from playwright.sync_api import Page, expect
from tests.console.browser.conftest import OpenPage
from tests.support.processes import ServeProcess, hutch

VIEWS = {
    "": "Overview",
    "runs": "Runs",
    "playground": "Playground",
    "sessions": "Sessions",
    "tools": "Tools",
    "flows": "Flows",
    "queue": "Queue",
    "approvals": "Approvals",
    "access": "Access",
    "connect": "Connect",
    "system": "System",
}
FLOW = """\
name: greet
inputs: {name: string}
steps:
  - {id: shout, run: code.run, with: {code: "return input.toUpperCase()", input: $input.name}}
outputs: {greeting: "Hello, ${step.shout}!"}
"""


@pytest.fixture(scope="module")
def filled(server: ServeProcess, home: str) -> ServeProcess:
    """The server with stored flows, users, keys, runs and a session."""
    httpx2.post(server.url + "/flows", content=FLOW, headers={"Content-Type": "application/yaml"})
    hutch("user", "add", "ann", env={"HUTCH_HOME": home})
    hutch("key", "add", "ann", env={"HUTCH_HOME": home})
    label = "@tpmjs/tools-template-render@9.1.0#templateRenderTool"
    httpx2.post(server.url + "/run", json={"code": "return missing", "label": label}, timeout=60)
    for code in ("return 1 + 1", "display('x'); throw new Error('it broke')"):
        httpx2.post(server.url + "/run", json={"code": code, "label": "example"}, timeout=60)
    httpx2.post(server.url + "/sessions", json={"id": "work"})
    httpx2.post(server.url + "/sessions/work/run", json={"code": "let prices = [1]"}, timeout=60)
    return server


def detail_pages(server: ServeProcess) -> Iterator[str]:
    """Yields the path of one detail page of each kind: run, session, flow, user."""
    failed = httpx2.get(server.url + "/runs", params={"status": "failed", "limit": 1}).json()["runs"][0]
    yield from (f"runs/{failed['run_id']}", "sessions/work", "flows/greet", "access/ann")


def test_every_view_opens_and_fits_a_phone(filled: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(filled.url)
    for path, title in VIEWS.items():
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{filled.url}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(page.get_by_role("link", name=title, exact=True)).to_have_attribute("aria-current", "page")
        page.set_viewport_size({"width": 390, "height": 800})
        if not path:
            expect(page.get_by_role("link", name=re.compile("templateRenderTool"))).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for path in detail_pages(filled):
        page.goto(f"{filled.url}/#/{path}")
        expect(page.locator("main .card").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_api_page_shows_operations_with_examples_and_fits_a_phone(
    filled: ServeProcess, open_page: OpenPage, axe: str
) -> None:
    page = open_page(filled.url)
    page.get_by_role("link", name="API", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Hutch API")
    page.goto(f"{filled.url}/docs/api#post_run")
    expect(page.locator("#post_run .code")).to_contain_text(f"curl {filled.url}/run")
    page.evaluate(axe)
    assert list(serious_problems(page, {})) == []
    page.get_by_role("searchbox").fill("recorded code")
    expect(page.locator(".api-operation")).to_have_count(1)
    page.locator(".api-operation summary").first.click()
    page.get_by_text("Accepted").click()
    expect(page.locator(".api-reply-details[open]")).to_contain_text("parent_run_id")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# Only the colours differ in the dark scheme, so only the contrast is checked.
@pytest.mark.parametrize(
    ("scheme", "options"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})], ids=["light", "dark"]
)
def test_no_view_has_a_serious_problem_for_assistive_technology(
    filled: ServeProcess,
    open_page: OpenPage,
    axe: str,
    scheme: Literal["light", "dark"],
    options: dict[str, list[str]],
) -> None:
    page = open_page(filled.url)
    page.emulate_media(color_scheme=scheme)
    page.evaluate(axe)
    found = []
    for path, title in VIEWS.items():
        page.goto(f"{filled.url}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        found += [f"{title}: {problem}" for problem in serious_problems(page, options)]
    for path in detail_pages(filled):
        page.goto(f"{filled.url}/#/{path}")
        expect(page.locator("main .card").first).to_be_visible()
        found += [f"{path}: {problem}" for problem in serious_problems(page, options)]
    assert found == []


def serious_problems(page: Page, options: dict[str, list[str]]) -> Iterator[str]:
    # Request details of violations only. Details of all elements without problems would make the result of
    # axe-core large.
    script = """async (options) => {
        const { passes, violations } = await axe.run({ ...options, resultTypes: ["violations"] });
        return { passes: passes.length, violations };
    }"""
    result = page.evaluate(script, options)
    assert result["passes"]
    for violation in result["violations"]:
        if violation["impact"] in ("serious", "critical"):
            places = [node["html"][:160] for node in violation["nodes"][:3]]
            yield f"{violation['id']}: {violation['help']} {places}"


def test_long_list_of_tools_says_how_many_more_there_are(server: ServeProcess, page: Page) -> None:
    tools = [
        {"scriptName": f"tools.a.b{number}", "qualifiedName": f"a__b{number}", "inputSchema": {}}
        for number in range(14)
    ]
    page.route("**/tools", lambda route: route.fulfill(json=tools))
    page.goto(f"{server.url}/#/tools")
    expect(page.get_by_role("button", name=re.compile(r"^a\.b"))).to_have_count(8)
    page.get_by_role("button", name="6 more").click()
    expect(page.get_by_role("button", name=re.compile(r"^a\.b"))).to_have_count(14)
    page.unroute("**/tools")


def test_unknown_view_leads_back(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#/nowhere")
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_views_open_with_the_keyboard(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", level=1)).to_have_text("System")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard shortcuts")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_theme_is_remembered(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.get_by_role("button", name="System colours").click()
    page.get_by_role("button", name="Light", exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_reloaded_view_has_the_same_filters(server: ServeProcess, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/#/runs?status=failed&text=nothing-like-this")
    expect(page.get_by_role("button", name=re.compile("^Failed"))).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("nothing-like-this")
    expect(page.get_by_text("No run matches these filters")).to_be_visible()


def test_console_says_that_records_wait_for_the_database(server: ServeProcess, open_page: OpenPage) -> None:
    """This test concerns only the page, so the state of the database is faked. tests/http/test_ready.py stops
    a real database.
    """
    page = open_page(server.url + "/#/connect")
    records = {"status": "waiting for the database", "waiting": 1234, "dropped": 0}
    page.route("**/health", lambda route: route.fulfill(json={"status": "ok", "records": records}))
    page.goto(server.url + "/#/runs")
    page.reload()
    note = page.get_by_text("The database does not answer.")
    expect(note).to_contain_text("1 234 run records wait to be written")
    page.unroute("**/health")
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(note).to_have_count(0)
